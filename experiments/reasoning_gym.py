"""Any reasoning-gym task by name (extra: reasoning-gym), with a small character model from scratch.

    grpo-jax train experiments/reasoning_gym.py --data.task gcd --train.steps 2

Tasks with short prompts and answers suit a model of this size: basic_arithmetic, chain_sum, gcd, lcm, count_bits,
letter_counting, number_sequence. The reward compares the text with the reference; the task's own scorer is `reasoning_gym`.

Cost: about 3 minutes for the warm start and 2 steps on 2 CPU cores.
"""

from grpo_jax.config import (
    CheckpointConfig,
    Config,
    EvaluationConfig,
    LossConfig,
    OptimizerConfig,
    ReasoningGymData,
    RewardConfig,
    RewardFunction,
    RolloutConfig,
    RunConfig,
    TrainConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.models.config import ModelConfig

config = Config(
    run=RunConfig(folder="runs/reasoning_gym"),
    data=ReasoningGymData(task="count_bits", size=2000),
    model=ModelConfig(
        num_layers=4, width=128, mlp_width=384, num_heads=4, num_kv_heads=2, head_dim=32, max_position=512
    ),
    reward=RewardConfig(functions=(RewardFunction("exact_match"),)),
    rollout=RolloutConfig(batch_size=8, group_size=8, max_prompt_length=256, max_completion_length=16),
    loss=LossConfig(aggregation="balanced"),
    warm_start=WarmStartConfig(steps=20, batch_size=16),
    optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10),
    update=UpdateConfig(micro_batch=32),
    train=TrainConfig(steps=200),
    evaluation=EvaluationConfig(every=50, problems=32, samples=2),
    checkpoint=CheckpointConfig(every=50),
)
