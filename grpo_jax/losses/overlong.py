"""What to do about completions that ran into the length limit (DAPO, arXiv 2503.14476, section 3.4).

A truncated completion is one that hit the limit without a stop token. The sampler's stop reason says so;
token ids never do.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.losses.arrays import check, check_values


def overlong_penalty(lengths: Int[Array, "N"], *, max_length: int, cache_length: int) -> Float[Array, "N"]:
    """The reward term 0 up to max_length − cache_length, linear to −1 at max_length, −1 beyond (DAPO, eq.
    13).

    Args:
      lengths: [N] tokens, not characters, of each completion.
      max_length: tokens; where the penalty reaches −1.
      cache_length: tokens over which it grows; 0 would divide by zero, and no penalty means not calling this.
    """
    check(
        0 < cache_length <= max_length,
        f"cache_length: expected between 1 and max_length = {max_length}, got {cache_length}",
    )
    check_values(lengths >= 0, "lengths: expected none below 0", lengths)
    return -jnp.clip((lengths - (max_length - cache_length)) / cache_length, 0.0, 1.0)


def mask_truncated(loss_mask: Bool[Array, "N T"], truncated: Bool[Array, "N"]) -> Bool[Array, "N T"]:
    """The mask without the tokens of truncated completions.

    Their reward keeps its place in the group's baseline; they leave numerator and counts of the loss alike,
    as weights are counted with the same mask.
    """
    return loss_mask & ~truncated[:, None]
