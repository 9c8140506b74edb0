"""Where sequences go when several share a row: first-fit decreasing, on the device, so that shapes depend on no length.

Longest first, each sequence goes into the first row that still has room for it. That takes at most 11/9 of the fewest
rows possible, plus one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from grpo_jax.models import axes
from grpo_jax.types import Batch


class Packing(NamedTuple):
    """Where each sequence starts in the rows laid end to end, and how many rows are used."""

    start: Int[Array, "N"]
    rows: Int[Array, ""]


def trained_columns(batch: Batch) -> Int[Array, "N"]:
    """Completion tokens up to the last that trains; 0 where none does."""
    column = jnp.arange(1, batch.loss_mask.shape[1] + 1)[None, :]
    return jnp.where(batch.loss_mask, column, 0).max(axis=1)


def needed_tokens(batch: Batch) -> Int[Array, "N"]:
    """Tokens of a sequence up to the last that trains, prompt included; 0 where none does."""
    columns = trained_columns(batch)
    return jnp.where(columns > 0, batch.prompt_lengths + columns, 0)


def first_fit(lengths: Int[Array, "N"], row_length: int) -> Packing:
    """Packs sequences of these lengths, none above `row_length`, into at most N rows."""
    order = jnp.argsort(-lengths, stable=True)

    def place(filled, length):
        row = jnp.argmax(filled + length <= row_length)
        return filled.at[row].add(length), row * row_length + filled[row]

    filled, starts = jax.lax.scan(place, jnp.zeros_like(lengths), lengths[order])
    return Packing(jnp.zeros_like(starts).at[order].set(starts), jnp.sum(filled > 0))


def rows_needed(batch: Batch) -> Int[Array, ""]:
    """Rows that the packed layout needs: for the tokens, and T of each for the completion tokens' log-probabilities.

    Where several devices hold the batch's rows, each packs its own into as many as the fullest needs.
    """
    split = axes.split_of(["rows"], [batch.completion_ids.shape[0]])
    return axes.parts_of(split) * axes.where_rows_lie(_rows_needed, split)(batch).max()


def _rows_needed(batch: Batch) -> Int[Array, "1"]:
    T = batch.completion_ids.shape[1]
    rows = first_fit(needed_tokens(batch), batch.prompt_ids.shape[1] + T).rows
    return jnp.maximum(rows, -(-trained_columns(batch).sum() // T))[None]
