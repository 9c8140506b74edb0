"""Corrections for a sampler whose log-probabilities are not the trainer's.

The policy that drew the tokens (another engine, another precision, a truncated distribution) is not quite
π_old, so each token is off by π_old/π_sampler. A correction is a function of `log_gap` = old_log_probs −
sampler_log_probs and the mask. It gives the factor on ℓ, which carries no gradient, and per-token reports. A
token it masks keeps its place in the counts of the weights.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from grpo_jax.losses import ratios
from grpo_jax.losses.surrogates import Reports

SamplerCorrection = Callable[[Float[Array, "n T"], Bool[Array, "n T"]], tuple[Float[Array, "n T"], Reports]]


def truncate(
    log_gap: Float[Array, "n T"],
    mask: Bool[Array, "n T"],
    *,
    level: ratios.Ratio = ratios.token,
    cap: float = 2.0,
) -> tuple[Float[Array, "n T"], Reports]:
    """min(π_old/π_sampler, cap): truncated importance sampling, by `level` per token or per sequence.

    For sequences take `ratios.sequence`, the geometric mean: the plain product leaves any band once a
    sequence is long.
    """
    ratio = level(log_gap, mask)
    return jnp.minimum(ratio, cap), {"sampler/truncated_fraction": ratio > cap}


def band(
    log_gap: Float[Array, "n T"],
    mask: Bool[Array, "n T"],
    *,
    level: ratios.Ratio = ratios.token,
    low: float = 0.5,
    high: float = 2.0,
) -> tuple[Float[Array, "n T"], Reports]:
    """1 where low ≤ π_old/π_sampler ≤ high, and 0 outside the band, where nothing trains."""
    ratio = level(log_gap, mask)
    inside = (ratio >= low) & (ratio <= high)
    return inside.astype(ratio.dtype), {"sampler/masked_fraction": ~inside}
