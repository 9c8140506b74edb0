"""Grouped-query attention: one softmax over keys that may come in several parts, and ready-made attends.

An `Attend` is what a decoder calls once per layer with queries and keys already normed and rotated. It owns
the mask, the layout of the rows and the cache, so the decoder knows nothing of any of them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.models.reductions import along_rows

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
    *leading, S, heads, head_dim = query.shape
    kv_heads = parts[0][0].shape[-2]
    repeats = heads // kv_heads
    # Key heads first, then the products are matrix products as stored: what is transposed is small, and no score is.
    query = jnp.moveaxis(query.reshape(*leading, S, kv_heads, repeats, head_dim), (-3, -2), (0, -3))
    query = query.reshape(kv_heads, *leading, repeats * S, head_dim)

    scores, masks = [], []
    for key, _, mask in parts:
        score = jnp.matmul(query, jnp.moveaxis(key, (-2, -3), (0, -1)), preferred_element_type=jnp.float32)
        score = score.reshape(kv_heads, *leading, repeats, S, key.shape[-3])
        mask = _expand_mask(mask, score.ndim)
        scores.append(jnp.where(mask, score * head_dim**-0.5, jnp.finfo(jnp.float32).min))
        masks.append(mask)

    top = functools.reduce(jnp.maximum, [along_rows(jnp.max, score)[..., None] for score in scores])
    top = jax.lax.stop_gradient(top)  # it cancels

    total, out = 0.0, 0.0
    for score, mask, (key, value, _) in zip(scores, masks, parts, strict=True):
        weight = jnp.where(mask, jnp.exp(score - top), 0.0)
        total += along_rows(jnp.sum, weight)
        weight = weight.reshape(kv_heads, *leading, repeats * S, key.shape[-3])
        # Unnormalised weights lie in [0, 1], so rounding them to the value's dtype costs no more than usual.
        out += jnp.matmul(
            weight.astype(value.dtype), jnp.moveaxis(value, -2, 0), preferred_element_type=jnp.float32
        )
    out = out.reshape(kv_heads, *leading, repeats, S, head_dim) / jnp.where(total > 0, total, 1.0)[..., None]
    out = jnp.moveaxis(out, (0, -3), (-3, -2))
    return out.reshape(*leading, S, heads, head_dim).astype(query.dtype)


def _expand_mask(mask: Bool[Array, "... S L"], rank: int) -> Bool[Array, "..."]:
    """Room for the axis of repeats, and leading axes up to the rank of the scores [K, ..., H/K, S, L]."""
    mask = mask[..., None, :, :]
    return mask.reshape((1,) * (rank - mask.ndim) + mask.shape)


Product = Callable[[Array, Array, Array, Array], Array]
"""(query, key, value, mask [..., S, L]) -> out: attention to keys in one part."""


def einsum(query: Array, key: Array, value: Array, mask: Array) -> Array:
    """The reference, on any device."""
    return attention(query, [(key, value, mask)])


def cudnn(query: Array, key: Array, value: Array, mask: Array, *, implementation: str = "cudnn") -> Array:
    """cuDNN's flash attention, on NVIDIA GPUs in 16 bits. Every query must see a key."""
    return jax.nn.dot_product_attention(
        query, key, value, mask=mask[..., None, :, :], implementation=implementation
    )


def dense(
    mask: Bool[Array, "... S S"], positions: Int[Array, "... S"], *, product: Product = einsum
) -> Attend:
    """Attend within the rows given, to the columns `mask` allows and the layer's window reaches."""

    def attend(query, key, value, layer, window, cache):
        del layer
        allowed = mask
        if window is not None:
            distance = positions[..., :, None] - positions[..., None, :]
            allowed = mask & ((window == 0) | (distance < window))
        return product(query, key, value, allowed), cache

    return attend


def packed(
    segment_ids: Int[Array, "... S"], positions: Int[Array, "... S"], *, product: Product = einsum
) -> Attend:
    """Several sequences joined in a row: attention is causal within a segment. Padding is segment −1."""
    causal = _causal(segment_ids.shape[-1])
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    causal = causal.reshape((1,) * (same.ndim - 2) + causal.shape)
    return dense(same & causal, positions, product=product)


def plain(
    prompt_lengths: Int[Array, "N"],
    completion_lengths: Int[Array, "N"],
    P: int,
    T: int,
    *,
    product: Product = einsum,
) -> Attend:
    """Rows of [prompt right-padded to P | completion right-padded to T], one sequence each."""
    column = jnp.arange(P + T)[None, :]
    is_prompt = column < P
    start = prompt_lengths[:, None]
    real = jnp.where(is_prompt, column < start, column - P < completion_lengths[:, None])
    return packed(jnp.where(real, 0, -1), plain_positions(prompt_lengths, P, T), product=product)


def group(prompt_lengths: Int[Array, "B"], P: int, G: int) -> Attend:
    """Rows of [prompt right-padded to P | G completions of it, each right-padded to T], columns P + G·T.

    A completion sees its prompt and itself. It meets the prompt's keys where they are, in one softmax with its own,
    so there is no score between one completion and another.
    """
    column = jnp.arange(P)
    in_prompt = column[None, :] < prompt_lengths[:, None]

    def attend(query, key, value, layer, window, cache):
        del layer
        (p_query, query), (p_key, key), (p_value, value) = (
            (x[:, :P], x[:, P:].reshape(x.shape[0], G, -1, *x.shape[2:])) for x in (query, key, value)
        )
        T = query.shape[2]
        # Padding is on the right, so a real token's own past holds none.
        within_prompt, within_own = _causal(P)[None], _causal(T)[None, None]
        to_prompt = in_prompt[:, None, None, :]
        if window is not None:
            position = (prompt_lengths[:, None] + jnp.arange(T)[None, :])[:, None, :, None]
            to_prompt &= (window == 0) | (position - column[None, None, None, :] < window)
            within_prompt, within_own = _near(within_prompt, window), _near(within_own, window)
        prompt = attention(p_query, [(p_key, p_value, within_prompt)])
        parts = [(p_key[:, None], p_value[:, None], to_prompt), (key, value, within_own)]
        own = attention(query, parts)
        return jnp.concatenate([prompt, own.reshape(own.shape[0], -1, *own.shape[3:])], axis=1), cache

    return attend


def group_positions(prompt_lengths: Int[Array, "B"], P: int, G: int, T: int) -> Int[Array, "B L"]:
    """Positions of the group layout: every completion follows the prompt without a gap."""
    shape = (prompt_lengths.shape[0], G, T)
    own = jnp.broadcast_to(prompt_lengths[:, None, None] + jnp.arange(T)[None, None, :], shape)
    prompt = jnp.broadcast_to(jnp.arange(P)[None, :], (shape[0], P))
    return jnp.concatenate([prompt, own.reshape(shape[0], -1)], axis=1)


def _causal(size: int) -> Bool[Array, "S S"]:
    return jnp.arange(size)[:, None] >= jnp.arange(size)[None, :]


def _near(causal: Bool[Array, "... S S"], window: Int[Array, ""]) -> Bool[Array, "... S S"]:
    """Of a causal mask, what lies within the window (0 = all)."""
    size = causal.shape[-1]
    distance = (jnp.arange(size)[:, None] - jnp.arange(size)[None, :]).reshape(causal.shape)
    return causal & ((window == 0) | (distance < window))


def plain_positions(prompt_lengths: Int[Array, "N"], P: int, T: int) -> Int[Array, "N L"]:
    """Positions of the plain layout: a completion follows its prompt without a gap, whatever the padding."""
    column = jnp.arange(P + T)[None, :]
    return jnp.where(column < P, column, column - P + prompt_lengths[:, None])
