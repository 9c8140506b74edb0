"""Grade-school mathematics from a JSONL file, with a tiny character model: the whole path on real problems.

    grpo-jax train experiments/gsm8k.py --data.path gsm8k_train.jsonl --train.steps 2

The file has `question` and `answer` fields, the answer ending in "#### 18". A model of this size cannot solve any: expect
rewards near 0. For real results give `model` and `tokenizer` a pretrained model's folder and longer completions.

Cost: about 2 minutes for 2 steps on 2 CPU cores, most of it compilation.
Data: Cobbe et al., "Training Verifiers to Solve Math Word Problems", arXiv 2110.14168.
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
)
from grpo_jax.models.config import ModelConfig

config = Config(
    run=RunConfig(folder="runs/gsm8k"),
    data=FileData(
        path="gsm8k_train.jsonl",
        prompt="Question: {question}\nAnswer: ",
        answer_field="answer",
        answer_pattern=r"####\s*(.+)",
        held_out_fraction=0.05,
    ),
    model=ModelConfig(
        num_layers=4, width=128, mlp_width=384, num_heads=4, num_kv_heads=2, head_dim=32, max_position=2048
    ),
    reward=RewardConfig(functions=(RewardFunction("number_match"),)),
    rollout=RolloutConfig(batch_size=4, group_size=4, max_prompt_length=1100, max_completion_length=64),
    loss=LossConfig(aggregation="balanced"),
    optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10),
    update=UpdateConfig(micro_batch=8),
    train=TrainConfig(steps=200),
    evaluation=EvaluationConfig(every=50, problems=32, samples=1),
    checkpoint=CheckpointConfig(every=50),
)
