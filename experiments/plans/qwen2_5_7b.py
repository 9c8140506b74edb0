"""Qwen2.5-7B's shape under GRPO, 128 sequences of 1024 + 3072 tokens a step, to plan for TPUs before there are any.

    grpo-jax plan --topology v5p:2x2x2 --config experiments/plans/qwen2_5_7b.py
    grpo-jax plan --topology v6e:4x4 --config experiments/plans/qwen2_5_7b.py --mesh.fsdp 16

The architecture is written out, so no weights are needed; its problems are placeholders, since a plan reads none. To train
it, set `model` to PretrainedModel(path=…) and `data` to problems of your own.
"""

from grpo_jax.config import (
    Config,
    LossConfig,
    MeshConfig,
    OptimizerConfig,
    RolloutConfig,
    RunConfig,
    UpdateConfig,
)
from grpo_jax.models.config import ModelConfig

config = Config(
    run=RunConfig(folder="runs/qwen2_5_7b"),
    model=ModelConfig(
        vocab_size=152_064,
        num_layers=28,
        width=3584,
        mlp_width=18_944,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        max_position=131_072,
        rope_theta=1_000_000.0,
        norm_eps=1e-6,
        qkv_bias=True,
        tied_embeddings=False,
        dtype="bfloat16",  # of the computation; parameters and moments are float32
    ),
    rollout=RolloutConfig(batch_size=16, group_size=8, max_prompt_length=1024, max_completion_length=3072),
    loss=LossConfig(aggregation="token", clip_high=0.28),
    optimizer=OptimizerConfig(learning_rate=1e-6, warmup_steps=10),
    update=UpdateConfig(micro_batch=8, layout="plain"),
    mesh=MeshConfig(data=1, fsdp=8),
)
