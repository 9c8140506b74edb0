"""Small batches and the whole path from rewards to a gradient, for tests of any objective."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.losses import objective

NUM_GROUPS = 3


def batch(seed: int = 0, *, rows: int = 12, tokens: int = 5, rewards: str = "binary") -> dict[str, jax.Array]:
    """Three groups of neighbours in no order, ragged lengths, ratios well off 1; every group is mixed."""
    rng = np.random.default_rng(seed)
    group_ids = rng.permutation(np.arange(rows) % NUM_GROUPS)
    while True:
        drawn = rng.integers(0, 2, rows) if rewards == "binary" else rng.choice([0, 0.25, 0.5, 1], rows)
        if all(np.ptp(drawn[group_ids == g]) > 0 for g in range(NUM_GROUPS)):
            break
    lengths = rng.integers(1, tokens + 1, rows)
    log_probs = -rng.exponential(1.0, (rows, tokens))
    return {
        "rewards": jnp.asarray(drawn, float),
        "group_ids": jnp.asarray(group_ids, jnp.int32),
        "loss_mask": jnp.asarray(np.arange(tokens) < lengths[:, None]),
        "log_probs": jnp.asarray(log_probs, float),
        "old_log_probs": jnp.asarray(log_probs + rng.normal(0, 0.3, log_probs.shape), float),
        "ref_log_probs": jnp.asarray(log_probs + rng.normal(0, 0.3, log_probs.shape), float),
        "sampler_log_probs": jnp.asarray(log_probs + rng.normal(0, 0.3, log_probs.shape), float),
        "entropy": jnp.asarray(rng.exponential(1.0, log_probs.shape), float),
    }


def prepare(method: objective.Objective, rows: dict, *, num_groups: int = NUM_GROUPS, axis_name=None) -> dict:
    """The arguments of `objective.loss` but for the differentiated log-probs."""
    groups = {"group_ids": rows["group_ids"], "num_groups": num_groups, "axis_name": axis_name}
    advantages, _, _ = objective.advantages(
        method, rewards=rows["rewards"], history=objective.init_history(method), **groups
    )
    weights = objective.weights(method, advantages=advantages, loss_mask=rows["loss_mask"], **groups)
    given = {name: rows[name] for name in ("old_log_probs", "loss_mask", "sampler_log_probs")}
    given |= {"advantages": advantages, "weights": weights}
    constants = objective.group_constants(method, log_probs=rows["log_probs"], **given, **groups)
    return given | {
        "group_constants": constants,
        "ref_log_probs": rows["ref_log_probs"],
        "entropy": rows["entropy"],
    }


def loss_and_gradient(method: objective.Objective, log_probs: jax.Array, given: dict):
    """(loss, its gradient by log_probs, totals), of any cut of a batch."""

    def loss(log_probs):
        return objective.loss(method, log_probs=log_probs, **given)

    (value, totals), gradient = jax.value_and_grad(loss, has_aux=True)(log_probs)
    return value, gradient, totals


def evaluate(method: objective.Objective, rows: dict):
    """(loss, gradient, totals) of a whole batch at once."""
    return loss_program(loss_part(method))(rows["log_probs"], prepare(method, rows))


def loss_part(method: objective.Objective) -> objective.Objective:
    """The method as its loss sees it: what only makes advantages and weights is the same for all."""
    default = objective.Objective()
    return replace(method, advantage=default.advantage, aggregation=default.aggregation, history=None)


@cache
def loss_program(method: objective.Objective):
    return compiled(loss_and_gradient, method)


def compiled(function, *arguments, **static):
    """jit for a program that runs a few times: nearly all its cost is compiling."""
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(partial(function, *arguments, **static), compiler_options=options)
