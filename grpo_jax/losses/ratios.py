"""Importance ratios: how the policy now compares with the policy before this rollout's updates.

A ratio is a function of `log_ratio` = log_probs − old_log_probs, [n, T] and 0 where the mask is, and of the
mask. It gives one ratio per token. They differ in what they are taken over and in where the gradient flows.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.losses.arrays import divide

Ratio = Callable[[Float[Array, "n T"], Bool[Array, "n T"]], Float[Array, "n T"]]

PRODUCT_LIMIT = 20.0
"""|Σ_t log_ratio| beyond which the plain product is clamped: exp(20) is 5e8."""


def token(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n T"]:
    """ρ_it = exp(log_ratio_it) (PPO, GRPO)."""
    return jnp.exp(log_ratio)


def sequence(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n T"]:
    """s_i = exp(Σ_t log_ratio_it / T_i) on every token of i, with gradient through all of them.

    GSPO, arXiv 2507.18071, eq. 7.
    """
    return jnp.broadcast_to(jnp.exp(_mean(log_ratio, mask)), log_ratio.shape)


def sequence_token(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n T"]:
    """sg[s_i] · π_it / sg[π_it]: GSPO's value, each token's own gradient.

    GSPO-token, arXiv 2507.18071, eq. 14.
    """
    own = log_ratio - jax.lax.stop_gradient(log_ratio)
    return jnp.exp(jax.lax.stop_gradient(_mean(log_ratio, mask)) + own)


def sequence_product(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n T"]:
    """exp(Σ_t log_ratio_it), the sequence's probability ratio, with the sum clamped to ±20.

    The ratio DFPO is about, arXiv 2604.13088v1.
    """
    log_product = jnp.clip(_sum(log_ratio, mask), -PRODUCT_LIMIT, PRODUCT_LIMIT)
    return jnp.broadcast_to(jnp.exp(log_product), log_ratio.shape)


def is_clamped(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Bool[Array, "n T"]:
    """Tokens of sequences whose `sequence_product` meets its limit, and so loses value and gradient."""
    return jnp.broadcast_to(jnp.abs(_sum(log_ratio, mask)) > PRODUCT_LIMIT, log_ratio.shape)


def _sum(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n 1"]:
    return jnp.sum(log_ratio, axis=-1, keepdims=True, where=mask)


def _mean(log_ratio: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n 1"]:
    lengths = jnp.sum(mask, axis=-1, keepdims=True, dtype=log_ratio.dtype)
    return divide(_sum(log_ratio, mask), lengths)
