"""A whole experiment at the smallest size, for tests that run everything."""

from dataclasses import replace
from pathlib import Path

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
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.models.config import ModelConfig


def vowels(problem, completion):
    """A reward that an untrained model earns now and then, so that groups are mixed and gradients are not 0."""
    return float(any(letter in completion for letter in "aeiouAEIOU!?+-*/=0123456789"))


MODEL = ModelConfig(
    num_layers=1,
    width=16,
    mlp_width=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    max_position=32,
    remat="none",
)


def tiny(folder: Path, **sections) -> Config:
    """Two warm-start steps and four rollouts on one device, two optimizer steps each, with a KL term."""
    config = Config(
        run=RunConfig(folder=str(folder)),
        data=ArithmeticData(max_digits=1, held_out_fraction=0.3),
        model=MODEL,
        reward=RewardConfig(functions=(RewardFunction("tests.tiny:vowels"), RewardFunction("exact_match"))),
        rollout=RolloutConfig(batch_size=4, group_size=4, max_prompt_length=8, max_completion_length=4),
        loss=LossConfig(aggregation="balanced", kl_coef=0.01),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        update=UpdateConfig(mini_batch=2, micro_batch=4),
        warm_start=WarmStartConfig(steps=2, batch_size=8),
        train=TrainConfig(steps=4),
        evaluation=EvaluationConfig(every=2, problems=8, samples=2, success="exact_match"),
        checkpoint=CheckpointConfig(every=1),
    )
    config = replace(config, mesh=replace(config.mesh, data=1))
    return replace(config, **sections)
