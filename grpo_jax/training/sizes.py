"""Micro-batches of alike lengths, each computed at the smallest of a few compiled sizes that holds it.

Rows are sorted by length first, so that a long sequence makes few others pay for it. The choice is made on the device
and is the same on all, so one program serves every batch; its branches are the sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.models import axes
from grpo_jax.training import packing
from grpo_jax.types import Batch

LogProbs = Callable[[Any, Batch], tuple[Float[Array, "N T"], Float[Array, "N T"]]]

SHORTEST_CUT = 32
"""Columns below which another size is not worth its compile time."""
FEWEST_TOKENS = 256
"""The same for packed rows, in tokens."""


@dataclass(frozen=True)
class Sized:
    """Log-probs of a micro-batch, compiled in several sizes.

    `cuts` are functions of a batch's shape; see `columns` and `packed_rows`.
    """

    at: Callable[[int], LogProbs]
    """The log-probs at a size."""
    cuts: Callable[[Batch], tuple[int, ...]]
    """The sizes for batches of this shape, increasing; the last holds any."""
    needs: Callable[[Batch], Int[Array, ""]]
    """The size that a batch needs."""
    order: Callable[[Batch], Int[Array, "N"]] | None = None
    """Rows by length, or None where it does not matter which share a micro-batch."""

    def __call__(self, params: Any, batch: Batch) -> tuple[Float[Array, "N T"], Float[Array, "N T"]]:
        """At the largest size."""
        return self.at(self.cuts(batch)[-1])(params, batch)


def columns(log_probs: LogProbs, *, sizes: int, group_size: int = 1) -> Sized:
    """Plain and group layouts, with only so many of the completions' columns."""

    def at(width: int) -> LogProbs:
        def narrowed(params, batch):
            T = batch.completion_ids.shape[1]
            values = log_probs(params, narrow(batch, width))
            return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (0, T - width))), values)

        return narrowed

    def cuts(batch: Batch) -> tuple[int, ...]:
        return steps(batch.completion_ids.shape[1], sizes=sizes, smallest=SHORTEST_CUT)

    def order(batch: Batch):
        longest = packing.trained_columns(batch).reshape(-1, group_size).max(axis=1)
        first = jnp.argsort(-longest, stable=True) * group_size
        return (first[:, None] + jnp.arange(group_size)[None, :]).reshape(-1)

    return Sized(at, cuts, lambda batch: packing.trained_columns(batch).max(), order)


def packed_rows(at: Callable[[int], LogProbs], *, sizes: int) -> Sized:
    """The packed layout, in only so many rows."""

    def cuts(batch: Batch) -> tuple[int, ...]:
        N, row = batch.prompt_ids.shape[0], batch.prompt_ids.shape[1] + batch.completion_ids.shape[1]
        # Every device has as many rows of a size as any other.
        parts = axes.parts_of(axes.split_of(["rows"], [N]))
        return tuple(
            parts * size
            for size in steps(N // parts, sizes=sizes, smallest=-(-FEWEST_TOKENS // (row * parts)))
        )

    return Sized(at, cuts, packing.rows_needed)


def steps(whole: int, *, sizes: int, smallest: int) -> tuple[int, ...]:
    """`sizes` even steps up to `whole`, without those below `smallest`."""
    found = {-(-whole * step // sizes) for step in range(1, sizes + 1)}
    return tuple(sorted(size for size in found if size >= smallest or size == whole))


def narrow(batch: Batch, width: int) -> Batch:
    """The batch with only the first `width` columns of its completions."""
    T = batch.completion_ids.shape[1]
    cut = {
        f.name: value[:, :width]
        for f in fields(batch)
        if not f.name.startswith("prompt_") and (value := getattr(batch, f.name)) is not None
        if value.ndim == 2 and value.shape[1] == T
    }
    return replace(batch, **cut, completion_lengths=jnp.minimum(batch.completion_lengths, width))


def in_order(log_probs: LogProbs, batch: Batch, *, micro_batches: int) -> Int[Array, "N"] | None:
    """The order in which rows are dealt to micro-batches; None for that in which they stand."""
    if micro_batches == 1 or not isinstance(log_probs, Sized) or log_probs.order is None:
        return None
    return log_probs.order(batch)


def choose(log_probs: LogProbs, parts: Batch, axis_name: str | None) -> Int[Array, "parts"]:
    """For each micro-batch (the leading axis) the place among its sizes of the smallest that holds it on every device."""
    one = jax.eval_shape(lambda batch: jax.tree.map(lambda x: x[0], batch), parts)
    cuts = log_probs.cuts(one) if isinstance(log_probs, Sized) else ()
    if len(cuts) <= 1:
        return jnp.zeros(parts.group_ids.shape[:1], jnp.int32)
    needs = jax.lax.map(log_probs.needs, parts)
    if axis_name is not None:
        # One number per micro-batch, before the loop. All devices must take the same branch: a branch may hold
        # collectives of the other axes.
        needs = jax.lax.pmax(needs, axis_name)
    return jnp.sum(needs[:, None] > jnp.asarray(cuts[:-1])[None, :], axis=1)


def switch(
    log_probs: LogProbs, batch: Batch, choice: Int[Array, ""], function: Callable[[LogProbs], Any]
) -> Any:
    """function(log_probs at the chosen size of this batch)."""
    if not isinstance(log_probs, Sized):
        return function(log_probs)
    cuts = log_probs.cuts(batch)
    if len(cuts) == 1:
        return function(log_probs.at(cuts[0]))
    return jax.lax.switch(choice, [lambda size=size: function(log_probs.at(size)) for size in cuts])
