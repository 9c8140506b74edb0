"""How the sequences of a micro-batch become rows of tokens for the decoder.

    plain   one sequence a row: [prompt | completion]
    group   one group a row: [prompt | completion | completion | …], so a prompt is computed once for its G completions

A layout takes a batch and says what the decoder reads and which of its hidden states predict the completions. All give
the same log-probabilities; what differs is the work.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.models import attention
from grpo_jax.types import Batch


class Rows(NamedTuple):
    """A batch laid out."""

    ids: Int[Array, "R L"]
    positions: Int[Array, "R L"]
    attend: attention.Attend
    predicting: Callable[[Float[Array, "R L D"]], Float[Array, "N T D"]]
    """Hidden states of the rows -> those that predict each completion token."""


Layout = Callable[[Batch], Rows]


def plain(batch: Batch) -> Rows:
    """One sequence a row."""
    lengths, P, T = batch.prompt_lengths, batch.prompt_ids.shape[1], batch.completion_ids.shape[1]

    def predicting(hidden):
        first = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)
        return jnp.concatenate([first, hidden[:, P:-1]], axis=1)

    return Rows(
        ids=jnp.concatenate([batch.prompt_ids, batch.completion_ids], axis=1),
        positions=attention.plain_positions(lengths, P, T),
        attend=attention.plain(lengths, batch.completion_lengths, P, T),
        predicting=predicting,
    )


def group(group_size: int) -> Layout:
    """One group a row: `group_size` neighbouring rows of the batch, which share their prompt.

    Rows without a group (padding, unscored) keep their place, so that every `group_size` rows are of one prompt.
    """
    G = group_size

    def lay_out(batch: Batch) -> Rows:
        (N, T), P = batch.completion_ids.shape, batch.prompt_ids.shape[1]
        assert N % G == 0, f"{N} rows are not whole groups of {G}"
        B = N // G
        lengths = batch.prompt_lengths[::G]

        def predicting(hidden):
            first = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, None]
            first = jnp.broadcast_to(first, (B, G, 1, first.shape[-1]))
            own = hidden[:, P:].reshape(B, G, T, -1)
            return jnp.concatenate([first, own[:, :, :-1]], axis=2).reshape(N, T, -1)

        return Rows(
            ids=jnp.concatenate([batch.prompt_ids[::G], batch.completion_ids.reshape(B, G * T)], axis=1),
            positions=attention.group_positions(lengths, P, G, T),
            attend=attention.group(lengths, P, G),
            predicting=predicting,
        )

    return lay_out


def choose(name: Literal["auto", "plain", "group"], *, rows: int, group_size: int) -> Layout:
    """The layout of micro-batches of `rows` sequences per device. auto is group where these are whole groups."""
    if name == "auto":
        name = "plain" if rows % group_size else "group"
    return group(group_size) if name == "group" else plain
