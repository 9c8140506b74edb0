"""Advantages: how much better a response was than the others to the same prompt.

An advantage is a centred reward divided by a scale: `baseline` says what is subtracted, `scale` what divides.
Both are functions of the rewards and their `Groups`; rows that were not scored are no members of any group.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from grpo_jax.losses.arrays import as_float, divide
from grpo_jax.losses.groups import Groups

Baseline = Callable[[Float[Array, "N"], Groups], Float[Array, "N"]]
Scale = Callable[..., Float[Array, "..."]]
Advantage = Callable[[Float[Array, "N"], Groups], Float[Array, "N"]]


def group_mean(rewards: Float[Array, "N"], groups: Groups) -> Float[Array, "N"]:
    """r_i − mean_g."""
    centred = rewards - groups.mean(rewards)
    # Once more, for what the rounding of a large group's sum left over.
    return jnp.where(groups.counted, centred - groups.mean(centred), 0.0)


def leave_one_out(rewards: Float[Array, "N"], groups: Groups) -> Float[Array, "N"]:
    """r_i − mean of the group's others = G/(G−1) (r_i − mean_g) (RLOO, arXiv 2402.14740); alone, 0."""
    size = groups.size
    return group_mean(rewards, groups) * divide(size, size - 1)


def group_std(
    rewards: Float[Array, "N"], deviations: Float[Array, "N"], groups: Groups, *, ddof: int, eps: float
) -> Float[Array, "N"]:
    """The standard deviation of the rewards within the group."""
    return _std(rewards, groups, ddof) + eps


def batch_std(
    rewards: Float[Array, "N"], deviations: Float[Array, "N"], groups: Groups, *, ddof: int, eps: float
) -> Float[Array, "N"]:
    """The standard deviation of all raw rewards of the batch."""
    return _std(rewards, groups.whole_batch(), ddof) + eps


def batch_advantage_std(
    rewards: Float[Array, "N"], deviations: Float[Array, "N"], groups: Groups, *, ddof: int, eps: float
) -> Float[Array, "N"]:
    """The standard deviation over the batch of the centred rewards, a sequence counted once (REINFORCE++)."""
    return _std(deviations, groups.whole_batch(), ddof) + eps


def no_scale(
    rewards: Float[Array, "N"], deviations: Float[Array, "N"], groups: Groups, *, ddof: int, eps: float
) -> Float[Array, ""]:
    """1: the centred rewards themselves (Dr. GRPO, arXiv 2503.20783)."""
    return jnp.ones((), rewards.dtype)


def advantage(
    rewards: Shaped[Array, "N"],
    groups: Groups,
    *,
    baseline: Baseline = group_mean,
    scale: Scale = group_std,
    ddof: int = 0,
    eps: float = 1e-6,
) -> Float[Array, "N"]:
    """A_i = (r_i − baseline) / (std + eps) (GRPO, arXiv 2402.03300, section 4.1.2).

    Args:
      rewards: [N] raw rewards.
      groups: the rows' groups, without unscored rows.
      baseline: `group_mean` (the default) or `leave_one_out`.
      scale: `group_std` (the default), `batch_std`, `batch_advantage_std` or `no_scale`.
      ddof: delta degrees of freedom of the std (TRL and verl use 1).
      eps: added to the std.
    Returns: [N], 0 on rows that belong to no group, and exactly 0 where the reward is the baseline but for
    rounding.
    """
    rewards = jnp.where(groups.counted, as_float(rewards), 0.0)
    deviations = drop_rounding(baseline(rewards, groups), rewards, groups)
    return divide(deviations, scale(rewards, deviations, groups, ddof=ddof, eps=eps))


def drop_rounding(
    deviations: Float[Array, "N"], rewards: Float[Array, "N"], groups: Groups
) -> Float[Array, "N"]:
    """0 where |r_i − baseline| ≤ 1e-6 · max|r| of the group (float64: 1e-12).

    Float32 rewards .1 .3 .5 .7 .4 have mean .4 up to a rounding whose sign depends on the order of the sum;
    no rule that asks for the sign of an advantage may see it.
    """
    tolerance = 1e-12 if deviations.dtype == jnp.float64 else 1e-6
    return jnp.where(jnp.abs(deviations) <= tolerance * groups.max(jnp.abs(rewards)), 0.0, deviations)


def _std(values: Float[Array, "N"], groups: Groups, ddof: int) -> Float[Array, "N"]:
    """Square root of Σ (x − mean)² / (n − ddof), two passes; 0 where n ≤ ddof."""
    squares = groups.sum(group_mean(values, groups) ** 2)
    return jnp.sqrt(divide(squares, jnp.maximum(groups.size - ddof, 0)))
