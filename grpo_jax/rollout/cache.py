"""The keys and values of what has been read: a prompt's once for its whole group, a completion's its own.

Prompts live in rows and completions in slots; a `Seating` says which row every slot reads. Positions are
already rotated into the keys, so a column's place in the cache means nothing.

Completions are stored in one of two orders, since the best depends on the compiler:

[slot, head, head_dim, position]   keys; values [slot, head, position, head_dim]. Both products run along
                                   contiguous columns: at SmolLM2's shape on a CPU, 64 slots of 512 columns take
                                   240 ms, and 410 in the other order.
[slot, position, head, head_dim]   both. Every slot writes at a position of its own, one contiguous piece. XLA
                                   for TPU copies a cache in any other order into this one and back: 3.7 GiB of
                                   temporaries for a cache of 3.9, and 0.3 without (benchmarks/README.md).
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from grpo_jax.models.attention import Attend, packed
from grpo_jax.models.axes import constrain
from grpo_jax.models.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """R prompt rows and S slots, stacked over layers."""

    prompt_key: Float[Array, "layers R K h P"]
    prompt_value: Float[Array, "layers R K P h"]
    key: Float[Array, "layers S K h T"] | Float[Array, "layers S T K h"]
    value: Float[Array, "layers S K T h"] | Float[Array, "layers S T K h"]
    positions_first: bool = field(metadata={"static": True})
    """Whether completions are stored in the second of the two orders."""

    @property
    def columns(self) -> int:
        """T, tokens there is room for in a slot."""
        return self.value.shape[2 if self.positions_first else 3]

    def put(
        self,
        layer: Int[Array, ""],
        columns: Int[Array, "S"],
        key: Float[Array, "S K h"],
        value: Float[Array, "S K h"],
    ) -> "Cache":
        """One token per slot, each at its own column; a column beyond the last is dropped."""
        slots = jnp.arange(len(columns))
        if self.positions_first:
            at_key = at_value = (layer, slots, columns)
        else:
            everything = slice(None)
            at_key = (layer, slots, everything, everything, columns)
            at_value = (layer, slots, everything, columns)
        return placed(
            replace(
                self,
                key=self.key.at[at_key].set(key, mode="drop"),
                value=self.value.at[at_value].set(value, mode="drop"),
            )
        )

    def of_layer(self, layer: Int[Array, ""]) -> tuple[Float[Array, "S K h T"], Float[Array, "S K T h"]]:
        """The completions' keys and values of a layer, whatever the order they are stored in."""
        key, value = self.key[layer], self.value[layer]
        if self.positions_first:
            return jnp.transpose(key, (0, 2, 3, 1)), jnp.transpose(value, (0, 2, 1, 3))
        return key, value


class Seating(NamedTuple):
    """Where slots sit: slot s is lane `lane[s]` of row `row[s]`, and `slot[row, lane]` is s.

    Up to L slots share a row. Unused places of `slot` may hold any slot: what they compute is never read.
    """

    row: Int[Array, "S"]
    lane: Int[Array, "S"]
    slot: Int[Array, "R L"]


def empty(
    config: ModelConfig,
    *,
    rows: int,
    prompt_tokens: int,
    slots: int,
    tokens: int,
    positions_first: bool | None = None,
) -> Cache:
    """A cache of zeros; `tokens` columns per slot. `positions_first` is by default what suits the backend."""
    if positions_first is None:
        positions_first = jax.default_backend() == "tpu"

    def zeros(*shape):
        return jnp.zeros((config.num_layers, *shape), config.dtype)

    K, h = config.num_kv_heads, config.head_dim
    return Cache(
        prompt_key=zeros(rows, K, h, prompt_tokens),
        prompt_value=zeros(rows, K, prompt_tokens, h),
        key=zeros(slots, tokens, K, h) if positions_first else zeros(slots, K, h, tokens),
        value=zeros(slots, tokens, K, h) if positions_first else zeros(slots, K, tokens, h),
        positions_first=positions_first,
    )


def placed(cache: Cache) -> Cache:
    """Rows and slots dealt over the mesh this is traced under, heads split over its tensor axis; without one, as it is."""
    prompt, own = ("layers", "rows", "key_heads"), ("layers", "rows", "key_heads")
    if cache.positions_first:
        own = ("layers", "rows", None, "key_heads")
    return replace(
        cache,
        prompt_key=constrain(cache.prompt_key, *prompt),
        prompt_value=constrain(cache.prompt_value, *prompt),
        key=constrain(cache.key, *own),
        value=constrain(cache.value, *own),
    )


def widened(cache: Cache, tokens: int) -> Cache:
    """With `tokens` columns per slot."""

    def wider(array, axis):
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, tokens - cache.columns)
        return jnp.pad(array, widths)

    return replace(
        cache,
        key=wider(cache.key, 2 if cache.positions_first else 4),
        value=wider(cache.value, 2 if cache.positions_first else 3),
    )


def kept(cache: Cache, *, rows: Int[Array, "R"], slots: Int[Array, "S"]) -> Cache:
    """Only the given rows and slots, in that order."""
    return replace(
        cache,
        prompt_key=cache.prompt_key[:, rows],
        prompt_value=cache.prompt_value[:, rows],
        key=cache.key[:, slots],
        value=cache.value[:, slots],
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
    P, T = cache.prompt_value.shape[3], cache.columns
    # Masks are made once for all layers, unless layers have windows of their own.
    in_prompt = _up_to(P, prompt_lengths - 1)
    in_completion = _up_to(T, columns)

    def attend(query, key, value, layer, window, cache):
        K, h = key.shape[-2:]
        query = query.reshape(S, K, -1, h)
        cache = cache.put(layer, columns, key[:, 0], value[:, 0])

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
        from_own = _attend_part(query, *cache.of_layer(layer), own_mask[:, None])
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
