"""Rotary positions: the frequencies each scaling rule gives, and turning queries and keys by them."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from grpo_jax.models.config import RopeScaling


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Float[np.ndarray, "half"]:
    """Radians per position of each pair of channels: θ^(−2i/h), stretched by the scaling rule."""
    plain = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is None:
        return plain
    stretched = plain / scaling.factor
    if scaling.kind == "linear":
        return stretched
    keep = _kept_llama3(plain, scaling) if scaling.kind == "llama3" else _kept_yarn(head_dim, theta, scaling)
    return keep * plain + (1 - keep) * stretched


def _kept_llama3(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Share of each frequency left alone, by how often it turns within the original context (Llama 3.1)."""
    turns = scaling.original_max_position * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return np.clip((turns - low) / (high - low), 0, 1)


def _kept_yarn(head_dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Share of each frequency left alone: a ramp over channel index between two numbers of turns.

    YaRN, https://arxiv.org/abs/2309.00071, section 3.2; the ends are rounded outwards to whole channels as
    the authors' code does.
    """

    def channel(turns: float) -> float:
        return (
            head_dim * math.log(scaling.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(theta))
        )

    low = max(math.floor(channel(scaling.beta_fast)), 0)
    high = min(math.ceil(channel(scaling.beta_slow)), head_dim - 1)
    return 1 - np.clip((np.arange(head_dim // 2) - low) / ((high - low) or 0.001), 0, 1)


def amplitude(scaling: RopeScaling | None) -> float:
    """YaRN's multiplier of cosines and sines, which sharpens the softmax; 1 for every other rule."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0


def cos_sin(
    positions: Int[Array, "... S"], *, head_dim: int, theta: float, scaling: RopeScaling | None
) -> tuple[Float[Array, "... S half"], Float[Array, "... S half"]]:
    """Cosine and sine of every position's angles; float32, as bfloat16 blurs positions past 256."""
    turns = jnp.asarray(frequencies(head_dim, theta, scaling), jnp.float32)
    angles = jnp.einsum("...s,f->...sf", positions.astype(jnp.float32), turns)
    scale = amplitude(scaling)
    return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def rotate(x: Float[Array, "... S n h"], cos: Array, sin: Array) -> Float[Array, "... S n h"]:
    """Turn channel pairs (i, i + h/2), the half-split layout of Transformers' checkpoints."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
