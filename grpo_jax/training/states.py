"""The state of a run before its first step, from what the config asks for."""

from typing import Any

from grpo_jax.config import Config
from grpo_jax.losses import objective as objectives
from grpo_jax.types import TrainState


def first_state(
    config: Config,
    objective: objectives.Objective,
    *,
    params: Any,
    optimizer: Any,
    key: Any,
    warm: bool = False,
) -> TrainState:
    """`params` with all that depends on them: where the config needs a copy, it is still the same array."""
    return TrainState.first(
        params=params,
        optimizer=optimizer,
        key=key,
        warm=warm,
        history=objectives.init_history(objective),
        ref_params=params if config.loss.kl_coef else None,
        sampler_params=params if config.rollout.lag else None,
    )
