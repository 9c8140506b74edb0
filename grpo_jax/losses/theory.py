"""Closed forms a reader can check against the papers: what the methods' claims come to in numbers.

p is a prompt's probability of success, G the group size, and S the event that a group is neither all right
nor all wrong, so that it teaches at all. Functions are vectorised over their array arguments and
differentiable in them; G is a plain number.

HA-DW: Your Group-Relative Advantage Is Biased, arXiv 2601.08521. BA: Balanced Aggregation, arXiv 2605.04077.
DFPO: Token Gradient Cancellation, arXiv 2604.13088v1.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from grpo_jax.losses.arrays import divide

Values = Shaped[Array, "..."] | float | int
Density = Callable[[Float[Array, "..."]], Float[Array, "..."]]


# HA-DW: why the group mean is a biased baseline
# ------------------------------------------------------------------


def mixed_probability(p: Values, group_size: int) -> Float[Array, "..."]:
    """P(S) = 1 − p^G − (1−p)^G."""
    p = jnp.asarray(p, float)
    return -jnp.expm1(group_size * jnp.log1p(-p)) - p**group_size  # without cancellation where p is small


def expected_group_mean(p: Values, group_size: int) -> Float[Array, "..."]:
    """E[p̂ | S] = p (1 − p^{G−1}) / P(S): above p on hard prompts, below on easy ones (theorem 1)."""
    p = jnp.asarray(p, float)
    return p * -jnp.expm1((group_size - 1) * jnp.log(p)) / mixed_probability(p, group_size)


def advantage_bias(p: Values, group_size: int) -> Float[Array, "..."]:
    """E[Â_i − A_i | S] = p − E[p̂ | S], with A = r − p and Â = r − p̂.

    Below 0 for p < 1/2: the estimate is too low on hard prompts. E[Â | S] itself is 0.
    """
    return jnp.asarray(p, float) - expected_group_mean(p, group_size)


def expected_advantage(p: Values, group_size: int, *, right: bool) -> Float[Array, "..."]:
    """E[Â | S, r=1] = (1−p)(G−1) / (G (1−p^{G−1})), and −p (G−1) / (G (1−(1−p)^{G−1})) for r=0."""
    p = jnp.asarray(p, float)
    chance, sign = (p, 1.0) if right else (1.0 - p, -1.0)
    others = group_size - 1
    return sign * (1.0 - chance) * others / (group_size * -jnp.expm1(others * jnp.log(chance)))


def underestimate_probability(p: Values, group_size: int, *, eps: float = 0.0) -> Float[Array, "..."]:
    """P(A − Â > ε | S) = Σ_{k > G(p+ε)}^{G−1} C(G,k) p^k (1−p)^{G−k} / P(S): how often Â falls short by more
    than ε.
    """
    p = jnp.asarray(p, float)
    short = sum(
        jnp.where(
            k > group_size * (p + eps), math.comb(group_size, k) * p**k * (1 - p) ** (group_size - k), 0.0
        )
        for k in range(1, group_size)
    )
    return short / mixed_probability(p, group_size)


def average_underestimate_probability(
    group_size: int, *, low: float = 0.0, high: float = 0.5, eps: float = 0.0
) -> Float[Array, ""]:
    """The mean of `underestimate_probability` over p in (low, high), each p counting alike.

    (Drawing p and rejecting groups that are not mixed weighs p by P(S) instead, which is another number.)
    """
    jumps = [k / group_size - eps for k in range(1, group_size)]
    edges = [low, *(x for x in jumps if low < x < high), high]
    total = 0.0
    for start, stop in pairwise(edges):
        nodes, weights = _quadrature(start, stop, 40)
        total += jnp.sum(weights * underestimate_probability(jnp.asarray(nodes), group_size, eps=eps))
    return total / (high - low)


def hadw_advantage_sum(success: Values, anchor: Values, group_size: int, *, scale: float = 1.3) -> Values:
    """Σ_i Φ_i A_i = −2 λ G p̂ (1−p̂) sinh(p̂ − C) for binary rewards and A = r − p̂: the weighting's net
    push.
    """
    success = jnp.asarray(success, float)
    return -2 * scale * group_size * success * (1 - success) * jnp.sinh(success - anchor)


def continuous_group(density: Density, group_size: int, *, sigma: float) -> tuple[Array, Array]:
    """(P(S_σ^c), E[p̂ | S_σ]) for rewards in [0, 1] with this density; S_σ: some two rewards differ by more
    than σ.

    P(S_σ^c) = G ∫ f q^{G−1} du and E[p̂ | S_σ] = (p − ∫ (u + (G−1) m) f q^{G−1} du) / P(S_σ), where u is the
    smallest reward, q the probability of a reward in [u, u+σ] and m its mean there. By Gauss quadrature: a
    smooth density.
    """
    nodes, node_weights = (
        np.concatenate(parts)
        for parts in zip(_quadrature(0, 1 - sigma, 60), _quadrature(1 - sigma, 1, 60), strict=True)
    )
    inner, inner_weights = _quadrature(0.0, 1.0, 60)
    width = np.minimum(1.0, nodes + sigma) - nodes
    above = jnp.asarray(nodes[:, None] + width[:, None] * inner)
    mass = density(above) * (width[:, None] * inner_weights)
    q, first_moment = mass.sum(-1), (above * mass).sum(-1)  # first_moment = q m
    f = density(jnp.asarray(nodes)) * node_weights
    others = group_size - 1
    alike = group_size * jnp.sum(f * q**others)
    mean_alike = jnp.sum((nodes * q + others * first_moment) * f * q ** (others - 1))
    return alike, (jnp.sum(nodes * f) - mean_alike) / (1 - alike)


# BA: how hard the two signs of one group pull. k of G responses are right, L₊ and L₋ are the sides' mean
# lengths. Binary rewards, advantages by the group's population std, ratio 1.


def balanced_side_total(num_right: Values, group_size: int) -> Float[Array, "..."]:
    """Σ_{S±,t} w |A| = √(k(G−k)) / G, the same on both sides, under `sequence` and the balanced rules."""
    k = jnp.asarray(num_right, float)
    return jnp.sqrt(k * (group_size - k)) / group_size


def token_side_totals(
    num_right: Values, group_size: int, right_length: Values, wrong_length: Values
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Σ w|A| = √(k(G−k)) L± / N_t under `token`, N_t = kL₊ + (G−k)L₋: their ratio is L₊/L₋ (sign-length
    coupling).
    """
    k = jnp.asarray(num_right, float)
    pull = jnp.sqrt(k * (group_size - k)) / (k * right_length + (group_size - k) * wrong_length)
    return pull * right_length, pull * wrong_length


def token_loss_value(
    num_right: Values, group_size: int, right_length: Values, wrong_length: Values
) -> Float[Array, "..."]:
    """−√(k(G−k)) (L₊ − L₋) / N_t, the loss under `token`; it is 0 under `sequence` and the balanced rules."""
    right, wrong = token_side_totals(num_right, group_size, right_length, wrong_length)
    return wrong - right


def sequence_shared_coefficient(
    advantages: Float[Array, "... G"], lengths: Float[Array, "... G"]
) -> Float[Array, "..."]:
    """(1/G) Σ_i A_i / T_i: the net coefficient on a token that all responses share, under `sequence`; `token`
    gives 0.
    """
    return jnp.mean(advantages / lengths, axis=-1)


def balanced_shared_coefficient(
    num_right: Values, group_size: int, right_length: Values, wrong_length: Values
) -> Float[Array, "..."]:
    """(√(k(G−k))/G) (1/L₊ − 1/L₋), the same under `balanced`: not 0 once the sides' lengths differ."""
    side = balanced_side_total(num_right, group_size)
    return side * (1 / jnp.asarray(right_length, float) - 1 / jnp.asarray(wrong_length, float))


# DFPO: what is left of the gradient on a token that all responses share
# ------------------------------------------


def shared_residue(
    advantages: Float[Array, "... G"],
    ratios: Float[Array, "... G"],
    token_weights: Float[Array, "... G"] | float = 1.0,
) -> Float[Array, "..."]:
    """|Σ_i ω_i Â_i w_i| / Σ_i |ω_i Â_i w_i|: 0 where the shared token's gradient cancels, at most 1.

    With equal ω and ΣÂ = 0 the numerator is G |cov(Â, w)|: it is the ratios' dependence on the advantage that
    drifts, and that both transforms remove.
    """
    pull = token_weights * advantages * ratios
    return divide(jnp.abs(pull.sum(-1)), jnp.abs(pull).sum(-1))


def _quadrature(low: float | int, high: float | int, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss–Legendre nodes and weights on [low, high]."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return low + (high - low) * (nodes + 1) / 2, weights * (high - low) / 2
