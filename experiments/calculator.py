"""A small model learns to call a calculator and to use its answer: two turns, of which the tool's part is not trained.

    grpo-jax train experiments/calculator.py

Products of two-digit numbers are beyond so small a model. It can copy: the problem into a call, <<37*85>>, and the
calculator's answer, 3145, out of it. The warm start on demonstrations stops when it does both only now and then; GRPO
takes it from there. Measured once, seed 0: held-out accuracy, sampled at temperature 1, of 19.0 % [16.3, 22.1] before GRPO
and 53.4 % [48.3, 58.4] after (95 % intervals, 256 problems x 4 samples); turns per completion rise from 1.8 to 1.9.

Cost: a minute and a half on 2 CPU cores, other jobs beside it.
"""

from grpo_jax.config import (
    ArithmeticData,
    CheckpointConfig,
    Config,
    EvaluationConfig,
    LossConfig,
    OptimizerConfig,
    RewardConfig,
    RewardFunction,
    RolloutConfig,
    RunConfig,
    TrainConfig,
    WarmStartConfig,
)
from grpo_jax.models.config import ModelConfig

config = Config(
    run=RunConfig(folder="runs/calculator"),
    data=ArithmeticData(operations=("*",), max_digits=2, held_out_fraction=0.2),
    model=ModelConfig(
        num_layers=2,
        width=64,
        mlp_width=192,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        max_position=32,
        remat="none",
    ),
    reward=RewardConfig(functions=(RewardFunction("exact_match"),)),
    rollout=RolloutConfig(
        batch_size=32,
        group_size=8,
        max_prompt_length=7,
        max_completion_length=20,
        environment="calculator",
        max_turns=2,
    ),
    loss=LossConfig(aggregation="balanced"),
    warm_start=WarmStartConfig(
        steps=53,
        batch_size=128,
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=30, weight_decay=0.01),
    ),
    optimizer=OptimizerConfig(learning_rate=5e-4, warmup_steps=5, schedule="linear"),
    train=TrainConfig(steps=60),
    evaluation=EvaluationConfig(every=0, problems=256, samples=4),
    checkpoint=CheckpointConfig(every=50),
)
