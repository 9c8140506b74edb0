"""Per-token surrogates ℓ: what is maximised, and all that carries the policy's gradient.

A surrogate is a function `(ratio [n, T], log_probs [n, T], advantages [n, 1]) -> (ℓ [n, T], reports)`. It is
proportional to |A|. `reports` names per-token quantities whose mean over tokens is logged; most surrogates
report nothing. Options are bound with `functools.partial`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

Reports = dict[str, Shaped[Array, "n T"]]
Surrogate = Callable[
    [Float[Array, "n T"], Float[Array, "n T"], Float[Array, "n 1"]], tuple[Float[Array, "n T"], Reports]
]


def clip(
    ratio: Float[Array, "n T"],
    log_probs: Float[Array, "n T"],
    advantages: Float[Array, "n 1"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    symmetric: bool = False,
) -> tuple[Float[Array, "n T"], Reports]:
    """ℓ = min(ρA, clip(ρ, 1−clip_low, 1+clip_high) A).

    PPO, arXiv 1707.06347, eq. 7; with clip_high > clip_low, DAPO's clip-higher, arXiv 2503.14476, eq. 10.

    Args:
      dual_clip: c > 1; where A < 0, ℓ is at least cA, so that one huge ratio cannot dominate (arXiv
        1912.09729).
      symmetric: clip(ρ, ·) A without the min. A token outside the band loses its gradient whatever the sign
        of A; the min drops only one sign, which breaks the cancellation DFPO asks for.
    Reports the share of tokens whose gradient is lost below and above the band.
    """
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    below, above = ratio < 1 - clip_low, ratio > 1 + clip_high
    if symmetric:
        surrogate = clipped * advantages
    else:
        surrogate = jnp.minimum(ratio * advantages, clipped * advantages)
        below, above = below & (advantages < 0), above & (advantages > 0)
    if dual_clip is not None:
        surrogate = jnp.where(advantages < 0, jnp.maximum(surrogate, dual_clip * advantages), surrogate)
    return surrogate, {"clip/low_fraction": below, "clip/high_fraction": above}


def reinforce(
    ratio: Float[Array, "n T"], log_probs: Float[Array, "n T"], advantages: Float[Array, "n 1"]
) -> tuple[Float[Array, "n T"], Reports]:
    """ℓ = A log π: the plain policy gradient, no ratio. DFPO multiplies it by its constants w̃."""
    return advantages * log_probs, {}


def cispo(
    ratio: Float[Array, "n T"],
    log_probs: Float[Array, "n T"],
    advantages: Float[Array, "n 1"],
    *,
    ratio_cap: float = 5.0,
) -> tuple[Float[Array, "n T"], Reports]:
    """ℓ = sg[min(ρ, ratio_cap)] A log π: a large ratio is capped, but no token loses its gradient.

    CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4.
    """
    weight = jax.lax.stop_gradient(jnp.minimum(ratio, ratio_cap))
    return weight * advantages * log_probs, {"clip/high_fraction": ratio > ratio_cap}


def sapo(
    ratio: Float[Array, "n T"],
    log_probs: Float[Array, "n T"],
    advantages: Float[Array, "n 1"],
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> tuple[Float[Array, "n T"], Reports]:
    """ℓ = σ(τ(ρ−1)) · 4/τ · A, τ by the sign of A: a soft gate, no clip (SAPO, arXiv 2511.20347)."""
    tau = jnp.where(advantages > 0, tau_positive, tau_negative)
    return jax.nn.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantages, {}
