"""Group-relative losses as array mathematics: jax, numpy and jaxtyping, nothing else.

Start with `objective.py`, which says what is computed when, and `recipes.py`, which names the compositions.

    from grpo_jax.losses import objective, recipes

    method = recipes.balanced()
    advantages, _, _ = objective.advantages(method, rewards=..., group_ids=..., num_groups=...)
    weights = objective.weights(method, advantages=advantages, loss_mask=..., group_ids=..., num_groups=...)
    loss, totals = objective.loss(method, log_probs=..., old_log_probs=..., loss_mask=...,
    advantages=advantages,
                                  weights=weights)
"""

from grpo_jax.losses import (
    advantages,
    aggregation,
    arrays,
    dfpo,
    diagnostics,
    groups,
    hadw,
    kl,
    objective,
    overlong,
    ratios,
    recipes,
    sampler,
    surrogates,
    theory,
)
from grpo_jax.losses.diagnostics import Totals
from grpo_jax.losses.hadw import HistoryState
from grpo_jax.losses.objective import Objective, Weights

__all__ = [
    "HistoryState",
    "Objective",
    "Totals",
    "Weights",
    "advantages",
    "aggregation",
    "arrays",
    "dfpo",
    "diagnostics",
    "groups",
    "hadw",
    "kl",
    "objective",
    "overlong",
    "ratios",
    "recipes",
    "sampler",
    "surrogates",
    "theory",
]
