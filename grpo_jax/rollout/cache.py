"""The keys and values of what has been read: a prompt's once for its whole group, a completion's its own.

Prompts live in rows and completions in slots; a `Seating` says which row every slot reads. Positions are
already rotated into the keys, so a column's place in the cache means nothing. Keys are stored transposed,
since both products then run along contiguous columns: at SmolLM2's shape on a CPU, 64 slots of 512 columns
take 240 ms this way, where [slot, position, head, head_dim] takes 410.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.models.attention import Attend, packed
from grpo_jax.models.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """R prompt rows and S slots, stacked over layers."""

    prompt_key: Float[Array, "layers R K h P"]
    prompt_value: Float[Array, "layers R K P h"]
    key: Float[Array, "layers S K h T"]
    value: Float[Array, "layers S K T h"]


class Seating(NamedTuple):
    """Where slots sit: slot s is lane `lane[s]` of row `row[s]`, and `slot[row, lane]` is s.

    Up to L slots share a row. Unused places of `slot` may hold any slot: what they compute is never read.
    """

    row: Int[Array, "S"]
    lane: Int[Array, "S"]
    slot: Int[Array, "R L"]


def empty(config: ModelConfig, *, rows: int, prompt_tokens: int, slots: int, tokens: int) -> Cache:
    """A cache of zeros; `tokens` columns per slot."""

    def zeros(*shape):
        return jnp.zeros((config.num_layers, shape[0], config.num_kv_heads, *shape[1:]), config.dtype)

    h = config.head_dim
    return Cache(
        prompt_key=zeros(rows, h, prompt_tokens),
        prompt_value=zeros(rows, prompt_tokens, h),
        key=zeros(slots, h, tokens),
        value=zeros(slots, tokens, h),
    )


def resized(cache: Cache, *, rows: Int[Array, "R"], slots: Int[Array, "S"], tokens: int) -> Cache:
    """Only the given rows and slots, in that order, with `tokens` columns per slot."""
    more = tokens - cache.value.shape[3]
    return Cache(
        prompt_key=cache.prompt_key[:, rows],
        prompt_value=cache.prompt_value[:, rows],
        key=jnp.pad(cache.key[:, slots], [(0, 0)] * 4 + [(0, more)]),
        value=jnp.pad(cache.value[:, slots], [(0, 0)] * 3 + [(0, more), (0, 0)]),
    )


def prefill(lengths: Int[Array, "n"], P: int) -> Attend:
    """Causal attention within prompts right-padded to P; the cache is (key, value), each [layers, n, P, K,
    h].
    """
    column = jnp.arange(P)[None, :]
    real = column < lengths[:, None]
    within = packed(jnp.where(real, 0, -1), jnp.broadcast_to(column, real.shape))

    def attend(query, key, value, layer, window, cache):
        out, _ = within(query, key, value, layer, window, None)
        keys, values = cache
        keys = jax.lax.dynamic_update_index_in_dim(keys, key, layer, 0)
        return out, (keys, jax.lax.dynamic_update_index_in_dim(values, value, layer, 0))

    return attend


def store(cache: Cache, rows: Int[Array, "n"], key: Array, value: Array) -> Cache:
    """Puts prefilled prompts ([layers, n, P, K, h]) in the given rows; a row beyond the last is dropped."""
    P = key.shape[2]
    key, value = jnp.transpose(key, (0, 1, 3, 4, 2)), jnp.transpose(value, (0, 1, 3, 2, 4))
    return replace(
        cache,
        prompt_key=cache.prompt_key.at[:, rows, :, :, :P].set(key, mode="drop"),
        prompt_value=cache.prompt_value.at[:, rows, :, :P].set(value, mode="drop"),
    )


def decode(
    cache: Cache, seating: Seating, prompt_lengths: Int[Array, "S"], columns: Int[Array, "S"]
) -> Attend:
    """One new token per slot, stored at that slot's own column: it sees its prompt and its own tokens."""
    S, (R, L) = columns.shape[0], seating.slot.shape
    P, T = cache.prompt_value.shape[3], cache.value.shape[3]
    # Masks are made once for all layers, unless layers have windows of their own.
    in_prompt = _up_to(P, prompt_lengths - 1)
    in_completion = _up_to(T, columns)

    def attend(query, key, value, layer, window, cache):
        K, h = key.shape[-2:]
        query = query.reshape(S, K, -1, h)
        at = (layer, jnp.arange(S))
        own_key = cache.key.at[*at, :, :, columns].set(key[:, 0], mode="drop")
        own_value = cache.value.at[*at, :, columns].set(value[:, 0], mode="drop")
        cache = replace(cache, key=own_key, value=own_value)

        prompt_mask, own_mask = in_prompt, in_completion
        if window is not None:
            prompt_mask &= _within(P, prompt_lengths + columns, window)
            own_mask &= _within(T, columns, window)
        in_rows = _attend_part(
            jnp.swapaxes(query[seating.slot], 1, 2).reshape(R, K, -1, h),
            cache.prompt_key[layer],
            cache.prompt_value[layer],
            jnp.repeat(prompt_mask[seating.slot], query.shape[2], axis=1),
        )
        from_prompt = jax.tree.map(
            lambda x: x.reshape(R, K, L, -1, *x.shape[3:])[seating.row, :, seating.lane], in_rows
        )
        from_own = _attend_part(query, own_key[layer], own_value[layer], own_mask[:, None])
        out = _merge(from_prompt, from_own)
        return out.reshape(S, 1, -1, h).astype(value.dtype), cache

    return attend


class _Part(NamedTuple):
    """Attention over some of the keys: the sum of exp(score − top) · value, that of the weights, and top."""

    out: Float[Array, "n K m h"]
    total: Float[Array, "n K m"]
    top: Float[Array, "n K m"]


def _attend_part(
    query: Float[Array, "n K m h"],
    key: Float[Array, "n K h C"],
    value: Float[Array, "n K C h"],
    mask: Bool[Array, "n m C"] | Bool[Array, "n 1 C"],
) -> _Part:
    """m queries to each of n places against that place's columns. Scores and sums are float32.

    Axes are in the order of a batched matrix product, so that nothing is transposed.
    """
    scores = jnp.einsum("nkmh,nkhc->nkmc", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None], scores * query.shape[-1] ** -0.5, jnp.finfo(jnp.float32).min)
    top = scores.max(-1)
    weights = jnp.where(mask[:, None], jnp.exp(scores - top[..., None]), 0.0)
    out = jnp.einsum(
        "nkmc,nkch->nkmh", weights.astype(value.dtype), value, preferred_element_type=jnp.float32
    )
    return _Part(out, weights.sum(-1), top)


def _merge(a: _Part, b: _Part) -> Float[Array, "n K m h"]:
    """One softmax over both parts. No gradient passes here, so merging sums is safe (in the update it is
    not).
    """
    top = jnp.maximum(a.top, b.top)
    scale_a, scale_b = jnp.exp(a.top - top), jnp.exp(b.top - top)
    out = a.out * scale_a[..., None] + b.out * scale_b[..., None]
    return out / (a.total * scale_a + b.total * scale_b)[..., None]


def _up_to(C: int, last: Int[Array, "S"]) -> Bool[Array, "S C"]:
    return jnp.arange(C)[None, :] <= last[:, None]


def _within(C: int, query: Int[Array, "S"], window: Int[Array, ""]) -> Bool[Array, "S C"]:
    """Columns within the layer's window (0 = all) of the query's column, counted as the columns are."""
    return (window == 0) | (query[:, None] - jnp.arange(C)[None, :] < window)
