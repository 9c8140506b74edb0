"""Grouped-query attention: one softmax over keys that may come in several parts, and ready-made attends.

An `Attend` is what a decoder calls once per layer with queries and keys already normed and rotated. It owns
the mask, the layout of the rows and the cache, so the decoder knows nothing of any of them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Attend = Callable[..., tuple[Float[Array, "... S H h"], Any]]
"""(query [..., S, H, h], key [..., S, K, h], value [..., S, K, h], layer, window, cache) -> (out, cache).

`out` has the query's shape; `layer` is an int32 scalar; `window` is None when no layer has a sliding window,
else this layer's (0 = full)."""

Part = tuple[Float[Array, "... L K h"], Float[Array, "... L K h"], Bool[Array, "... S L"]]
"""Keys, values and which of them each query may see."""


def attention(query: Float[Array, "... S H h"], parts: Sequence[Part]) -> Float[Array, "... S H h"]:
    """Softmax attention over the keys of all parts together.

    A part's leading dimensions broadcast against the query's, so [B, G, S, …] queries meet a [B, 1, P, …]
    prompt without copying it. Scores and softmax are float32; a query that may see nothing gives zeros.

    Args:
      query: [..., S, H, h]; head n reads key head n // (H / K).
      parts: (key [..., L, K, h], value [..., L, K, h], mask broadcastable to [..., S, L]), each with its L.
    Returns:
      [..., S, H, h], in the query's dtype.
    """
    *_, heads, head_dim = query.shape
    kv_heads = parts[0][0].shape[-2]
    query = query.reshape(*query.shape[:-2], kv_heads, heads // kv_heads, head_dim)

    scores, masks = [], []
    for key, _, mask in parts:
        score = jnp.einsum("...skgh,...lkh->...kgsl", query, key, preferred_element_type=jnp.float32)
        mask = _expand_mask(mask, score.ndim)
        scores.append(jnp.where(mask, score * head_dim**-0.5, jnp.finfo(jnp.float32).min))
        masks.append(mask)

    top = scores[0].max(-1, keepdims=True)
    for score in scores[1:]:
        top = jnp.maximum(top, score.max(-1, keepdims=True))

    total, out = 0.0, 0.0
    for score, mask, (_, value, _) in zip(scores, masks, parts, strict=True):
        weight = jnp.where(mask, jnp.exp(score - top), 0.0)
        total += weight.sum(-1)
        # Unnormalised weights lie in [0, 1], so rounding them to the value's dtype costs no more than usual.
        out += jnp.einsum(
            "...kgsl,...lkh->...skgh", weight.astype(value.dtype), value, preferred_element_type=jnp.float32
        )
    total = jnp.moveaxis(total, -1, -3)[..., None]
    out = out / jnp.where(total > 0, total, 1.0)
    return out.reshape(*out.shape[:-3], heads, head_dim).astype(query.dtype)


def _expand_mask(mask: Bool[Array, "... S L"], rank: int) -> Bool[Array, "..."]:
    """Room for the two head axes, and leading axes up to the rank of the scores [..., K, H/K, S, L]."""
    mask = mask[..., None, None, :, :]
    return mask.reshape((1,) * (rank - mask.ndim) + mask.shape)


def dense(mask: Bool[Array, "... S S"], positions: Int[Array, "... S"]) -> Attend:
    """Attend within the rows given, to the columns `mask` allows and the layer's window reaches."""

    def attend(query, key, value, layer, window, cache):
        del layer
        allowed = mask
        if window is not None:
            distance = positions[..., :, None] - positions[..., None, :]
            allowed = mask & ((window == 0) | (distance < window))
        return attention(query, [(key, value, allowed)]), cache

    return attend


def packed(segment_ids: Int[Array, "... S"], positions: Int[Array, "... S"]) -> Attend:
    """Several sequences joined in a row: attention is causal within a segment. Padding is segment −1."""
    column = jnp.arange(segment_ids.shape[-1])
    causal = column[:, None] >= column[None, :]
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    causal = causal.reshape((1,) * (same.ndim - 2) + causal.shape)
    return dense(same & causal, positions)


def plain(prompt_lengths: Int[Array, "N"], completion_lengths: Int[Array, "N"], P: int, T: int) -> Attend:
    """Rows of [prompt right-padded to P | completion right-padded to T], one sequence each."""
    column = jnp.arange(P + T)[None, :]
    is_prompt = column < P
    start = prompt_lengths[:, None]
    real = jnp.where(is_prompt, column < start, column - P < completion_lengths[:, None])
    return packed(jnp.where(real, 0, -1), plain_positions(prompt_lengths, P, T))


def plain_positions(prompt_lengths: Int[Array, "N"], P: int, T: int) -> Int[Array, "N L"]:
    """Positions of the plain layout: a completion follows its prompt without a gap, whatever the padding."""
    column = jnp.arange(P + T)[None, :]
    return jnp.where(column < P, column, column - P + prompt_lengths[:, None])
