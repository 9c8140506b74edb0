"""How the sequences of a micro-batch become rows of tokens for the decoder.

    plain    one sequence a row: [prompt | completion]
    group    one group a row: [prompt | completion | completion | …], so a prompt is computed once for its G completions
    packed   several sequences a row, without padding between them

A layout takes a batch and says what the decoder reads and which of its hidden states predict the completions. All give
the same log-probabilities where `loss_mask` is True, and anything finite elsewhere; what differs is the work.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from grpo_jax.models import attention, axes, splash
from grpo_jax.models.axes import DATA
from grpo_jax.models.config import ModelConfig
from grpo_jax.training import packing
from grpo_jax.types import Batch

Name = Literal["auto", "plain", "group", "packed"]
Attention = Literal["auto", "einsum", "cudnn", "splash"]


class Rows(NamedTuple):
    """A batch laid out: what the decoder reads, and what the head does with its hidden states."""

    ids: Int[Array, "R L"]
    positions: Int[Array, "R L"]
    attend: attention.Attend
    predicting: Callable[[Float[Array, "R L D"]], Float[Array, "n t D"]]
    """Hidden states of the rows -> those that predict each target."""
    targets: Int[Array, "n t"]
    restore: Callable[[Float[Array, "n t"]], Float[Array, "N T"]] = lambda x: x
    """Values of the targets -> values of the batch's completion tokens."""


Layout = Callable[[Batch], Rows]


def plain(batch: Batch, *, product: attention.Product = attention.einsum) -> Rows:
    """One sequence a row."""
    lengths, P, T = batch.prompt_lengths, batch.prompt_ids.shape[1], batch.completion_ids.shape[1]

    def predicting(hidden):
        first = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)
        return jnp.concatenate([first, hidden[:, P:-1]], axis=1)

    return Rows(
        ids=jnp.concatenate([batch.prompt_ids, batch.completion_ids], axis=1),
        positions=attention.plain_positions(lengths, P, T),
        attend=attention.plain(lengths, batch.completion_lengths, P, T, product=product),
        predicting=predicting,
        targets=batch.completion_ids,
    )


def group(group_size: int, *, by_kernel: bool = False) -> Layout:
    """One group a row: `group_size` neighbouring rows of the batch, which share their prompt.

    `by_kernel` is splash attention, on TPU.

    Rows without a group (padding, unscored) keep their place, so that every `group_size` rows are of one prompt.
    """
    G = group_size

    def lay_out(batch: Batch) -> Rows:
        (N, T), P = batch.completion_ids.shape, batch.prompt_ids.shape[1]
        assert N % G == 0, f"{N} rows are not whole groups of {G}"
        B = N // G
        lengths = batch.prompt_lengths[::G]
        attend = splash.group(lengths, P, G, T) if by_kernel else attention.group(lengths, P, G)

        def predicting(hidden):
            first = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, None]
            first = jnp.broadcast_to(first, (B, G, 1, first.shape[-1]))
            own = hidden[:, P:].reshape(B, G, T, -1)
            return jnp.concatenate([first, own[:, :, :-1]], axis=2).reshape(N, T, -1)

        return Rows(
            ids=jnp.concatenate([batch.prompt_ids[::G], batch.completion_ids.reshape(B, G * T)], axis=1),
            positions=attention.group_positions(lengths, P, G, T),
            attend=attend,
            predicting=predicting,
            targets=batch.completion_ids,
        )

    return lay_out


class _Packed(NamedTuple):
    """Integers of a device's own rows laid out by `packed`; indices count within what the device holds."""

    ids: Int[Array, "R L"]
    positions: Int[Array, "R L"]
    segments: Int[Array, "R L"]
    targets: Int[Array, "R T"]
    predictor: Int[Array, "R*T"]
    """For each target the place of the token that predicts it, of R·L."""
    slot: Int[Array, "N*T"]
    """For each completion token of the batch its place among the targets; R·T for one that does not exist."""


def packed(batch: Batch, *, rows: int, product: attention.Product = attention.einsum) -> Rows:
    """Several sequences a row of P + T tokens, in `rows` rows, which must be enough: see `packing.rows_needed`.

    Tokens after the last that trains are left out, and whole sequences if none trains. A device packs the sequences it
    holds, so that none moves to another.
    """
    N, T = batch.completion_ids.shape
    split = axes.split_of(["rows"], [N])
    laid = axes.where_rows_lie(partial(_pack, rows=rows // axes.parts_of(split)), split)(batch)

    def predicting(hidden):
        flat = hidden.reshape(-1, hidden.shape[-1])
        return axes.take_rows(flat, laid.predictor, split).reshape(rows, T, -1)

    def restore(values):
        return axes.take_rows(values.reshape(-1), laid.slot, split).reshape(N, T)

    return Rows(
        ids=laid.ids,
        positions=laid.positions,
        attend=attention.packed(laid.segments, laid.positions, product=product),
        predicting=predicting,
        targets=laid.targets,
        restore=restore,
    )


def _pack(batch: Batch, *, rows: int) -> _Packed:
    (N, T), P = batch.completion_ids.shape, batch.prompt_ids.shape[1]
    L = P + T
    needed = packing.needed_tokens(batch)
    start = packing.first_fit(needed, L).start
    column = jnp.arange(L)[None, :]
    within = jnp.where(column < P, column, column - P + batch.prompt_lengths[:, None])
    real = jnp.where(column < P, column < batch.prompt_lengths[:, None], within < needed[:, None])
    real &= needed[:, None] > 0
    place = jnp.where(real, start[:, None] + within, rows * L)  # beyond the end: dropped

    def laid(values, empty):
        flat = jnp.full((rows * L,), empty, jnp.int32)
        values = jnp.broadcast_to(values, place.shape).astype(jnp.int32)
        return flat.at[place].set(values, mode="drop").reshape(rows, L)

    # The completion tokens that exist, one after another; a place for a token that does not is N·T.
    exists = real[:, P:].reshape(-1)
    token = jnp.nonzero(exists, size=rows * T, fill_value=N * T)[0]
    nearest = jnp.minimum(token, N * T - 1)
    return _Packed(
        ids=laid(jnp.concatenate([batch.prompt_ids, batch.completion_ids], axis=1), 0),
        positions=laid(within, 0),
        segments=laid(jnp.arange(N)[:, None], -1),
        targets=batch.completion_ids.reshape(-1)[nearest].reshape(rows, T),
        predictor=jnp.minimum((place[:, P:] - 1).reshape(-1)[nearest], rows * L - 1),
        slot=jnp.where(exists, jnp.cumsum(exists) - 1, rows * T),
    )


def choose(name: Name, *, rows: int, group_size: int, mesh: Mesh) -> Name:
    """The layout of micro-batches of `rows` sequences per device of `mesh`.

    auto is group where these are whole groups, as a prompt is then computed once; else packed, which takes no more rows
    than plain and fewer the more lengths differ. Where fsdp or tensor split arrays it is plain: there packed gives the
    same gradients too, but has not been timed.
    """
    if name != "auto":
        return name
    if rows % group_size == 0:
        return "group"
    return "packed" if mesh.size == mesh.shape[DATA] else "plain"


def choose_attention(
    name: Attention, *, layout: Name, platform: str, model: ModelConfig, tensor: int = 1
) -> Attention:
    """How attention is computed on devices of `platform`, `tensor` of which split the heads.

    auto is the kernel for this layout if there is one, else einsum.

    Raises:
        ValueError: a kernel is asked for that is not for this layout, platform or model.
    """
    hinders = {
        "splash": [
            ("on TPU", platform == "tpu"),
            ("with update.layout group", layout == "group"),
            ("without model.layer_windows", not any(model.layer_windows)),
        ],
        "cudnn": [
            ("on an NVIDIA GPU", platform in ("gpu", "cuda")),
            ("with update.layout plain or packed", layout != "group"),
            ("with model.dtype bfloat16", model.dtype == "bfloat16"),
            # Else the partitioner would split the query's heads and not the key's, which the kernel refuses.
            ("with a mesh.tensor that divides model.num_kv_heads", model.num_kv_heads % tensor == 0),
        ],
    }
    missing = {kernel: [what for what, holds in needs if not holds] for kernel, needs in hinders.items()}
    if name == "auto":
        return next((kernel for kernel in missing if not missing[kernel]), "einsum")
    if missing.get(name):
        raise ValueError(
            f"update.attention: got {name!r}, which works {', '.join(missing[name])}; expected auto or einsum here "
            f"(layout {layout} on {platform})"
        )
    return name
