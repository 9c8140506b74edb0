"""DFPO: drift-fixing policy optimisation (Token Gradient Cancellation, arXiv 2604.13088v1).

A token that every response of a group shares says nothing about the reward, so its gradient should cancel
within the group. On-policy it does, as Σ_i A_i = 0; once ratios differ, it does not. DFPO takes the
sequences' ratios w, transforms them within each group to w̃ with Σ_i Â_i w̃_i = 0, and uses w̃_i · A_i · log
π_it with w̃ held constant.

w̃_i depends on the current parameters and on the whole group: it is computed by a gradient-free pass over the
mini-batch and is one constant per sequence after that. On-policy (w = 1) both transforms change nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.losses.arrays import divide
from grpo_jax.losses.groups import Groups

Pullback = Callable[[Float[Array, "N"]], Float[Array, "N"]]
Transform = Callable[[Float[Array, "N"], Float[Array, "N"], Groups], tuple[Float[Array, "N"], Pullback]]
"""(w, Â, groups) -> w̃, and the map from a cotangent of w̃ to one of w (for the ablation without
stop-gradient).
"""


def none(
    ratios: Float[Array, "N"], advantages: Float[Array, "N"], groups: Groups
) -> tuple[Float[Array, "N"], Pullback]:
    """w̃ = w."""
    return ratios, lambda cotangents: cotangents


def min_replace(
    ratios: Float[Array, "N"], advantages: Float[Array, "N"], groups: Groups
) -> tuple[Float[Array, "N"], Pullback]:
    """w̃_i = min_{j∈g} w_j. Cancels where ΣÂ = 0: not after HA-DW, nor when a sequence takes no part."""
    smallest = groups.min(ratios)
    is_smallest = (ratios == smallest) & groups.counted

    def pullback(cotangents):
        return jnp.where(is_smallest, divide(groups.sum(cotangents), groups.sum(is_smallest)), 0.0)

    return smallest, pullback


def orth_proj(
    ratios: Float[Array, "N"], advantages: Float[Array, "N"], groups: Groups
) -> tuple[Float[Array, "N"], Pullback]:
    """w̃ = w − (Âᵀw / ‖Â‖²) Â; Â = 0 leaves w alone. Weights may be negative."""
    squared = groups.sum(advantages**2)

    def project(x):
        return x - divide(groups.sum(advantages * x), squared) * advantages

    return project(ratios), project  # an orthogonal projection is its own transpose


@dataclass(frozen=True)
class DriftFix:
    """The method's options.

    Attributes:
      transform: `min_replace`, `orth_proj`, or `none` (plain sequence weights, for comparison).
      cancel_under_aggregation: transform v_i = w_i ω_i and divide ω_i back out, so that the sum cancels as
        weighed by an aggregation whose ω differs within a group (`sequence`, the balanced rules).
      stop_gradient: hold w̃ constant. False is the paper's ablation: ℓ = w̃_i(θ) A_i log π_it with its full
        gradient.
      global_scale: the paper's other ablation: one minimum, or one projection, over the batch in place of the
        group's.
    """

    transform: Transform = min_replace
    cancel_under_aggregation: bool = False
    stop_gradient: bool = True
    global_scale: bool = False


class GroupConstants(NamedTuple):
    """One constant per sequence: w̃, and without stop-gradient the cotangent of the sequence's own ratio."""

    weights: Float[Array, "N"]
    cotangents: Float[Array, "N"] | None = None


def fix_drift(
    options: DriftFix,
    *,
    ratios: Float[Array, "N"],
    advantages: Float[Array, "N"],
    token_weights: Float[Array, "N"],
    lengths: Float[Array, "N"],
    groups: Groups,
) -> tuple[Float[Array, "N"], Pullback]:
    """w̃ of every sequence, and the pullback of `Transform`.

    Args:
      ratios: [N] w, one per sequence.
      advantages: [N] those that enter the surrogate.
      token_weights: [N] ω.
      lengths: [N] valid tokens; a sequence without one takes no part and keeps its w.
      groups: the rows' groups.
    """
    member = (lengths > 0) & groups.counted
    aggregation = jnp.ones_like(ratios)
    if options.cancel_under_aggregation:
        member, aggregation = member & (token_weights > 0), token_weights
    groups = groups.only(member)
    if options.global_scale:
        groups = groups.whole_batch()
    weighed = ratios * aggregation
    transformed, pullback = options.transform(weighed, jnp.where(member, advantages, 0.0), groups)

    def pull_through(cotangents):
        return jnp.where(member, aggregation * pullback(divide(cotangents, aggregation)), 0.0)

    return divide(jnp.where(member, transformed, weighed), aggregation), pull_through
