"""One-step word problems (MAWPS, single operation) from a JSONL file with `input` and `target` fields.

    grpo-jax train experiments/mawps.py --data.path mawps_singleop.jsonl --train.steps 2

A character model from scratch, warm-started on the answers: it learns their form and a few of the easiest.

Cost: about 4 minutes for the warm start and 2 steps on 2 CPU cores.
Data: Koncel-Kedziorski et al., "MAWPS: A Math Word Problem Repository", NAACL 2016.
"""

from grpo_jax.config import (
    CheckpointConfig,
    Config,
    EvaluationConfig,
    FileData,
    LossConfig,
    OptimizerConfig,
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
    run=RunConfig(folder="runs/mawps"),
    data=FileData(path="mawps_singleop.jsonl", prompt="{input}\n", answer_field="target"),
    model=ModelConfig(
        num_layers=4, width=128, mlp_width=384, num_heads=4, num_kv_heads=2, head_dim=32, max_position=512
    ),
    reward=RewardConfig(functions=(RewardFunction("number_match"),)),
    rollout=RolloutConfig(batch_size=8, group_size=8, max_prompt_length=320, max_completion_length=8),
    loss=LossConfig(aggregation="balanced"),
    warm_start=WarmStartConfig(steps=20, batch_size=16),
    optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10),
    update=UpdateConfig(micro_batch=32),
    train=TrainConfig(steps=200),
    evaluation=EvaluationConfig(every=50, problems=32, samples=2),
    checkpoint=CheckpointConfig(every=50),
)
