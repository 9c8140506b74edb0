"""Where the model meets the mathematics: log-probabilities and entropies of sampled completions.

The [N, T, V] logits never exist: the head runs over chunks of tokens, and each chunk's logits are recomputed in the
backward pass.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from grpo_jax.models import attention
from grpo_jax.types import Batch

LogProbs = Callable[[Any, Batch], tuple[Float[Array, "N T"], Float[Array, "N T"]]]


def make_log_probs(graphdef: nnx.GraphDef, *, temperature: float, head_chunk: int) -> LogProbs:
    """A function (params, batch) -> (log_probs [N, T], entropy [N, T]) of the policy at `temperature`.

    `head_chunk` is the number of tokens per device whose logits exist at one time. Values beyond a completion's length
    are finite and mean nothing; the caller masks.
    """

    def log_probs(params: Any, batch: Batch):
        decoder = nnx.merge(graphdef, params)
        prompt_size, size = batch.prompt_ids.shape[1], batch.completion_ids.shape[1]
        ids = jnp.concatenate([batch.prompt_ids, batch.completion_ids], axis=1)
        positions = attention.plain_positions(batch.prompt_lengths, prompt_size, size)
        attend = attention.plain(batch.prompt_lengths, batch.completion_lengths, prompt_size, size)
        hidden, _ = decoder(ids, positions, attend)
        hidden = predicting(hidden, batch.prompt_lengths, prompt_size)
        return chunked_log_probs(
            decoder.logits, hidden, batch.completion_ids, temperature=temperature, chunk=head_chunk
        )

    return log_probs


def predicting(
    hidden: Float[Array, "N L D"], prompt_lengths: Int[Array, "N"], prompt_size: int
) -> Float[Array, "N T D"]:
    """The hidden states that predict each completion token: the last prompt token's, then the completion's but its last."""
    first = jnp.take_along_axis(hidden, (prompt_lengths - 1)[:, None, None], axis=1)
    return jnp.concatenate([first, hidden[:, prompt_size:-1]], axis=1)


def chunked_log_probs(
    logits: Callable,
    hidden: Float[Array, "N T D"],
    targets: Int[Array, "N T"],
    *,
    temperature: float,
    chunk: int,
) -> tuple[Float[Array, "N T"], Float[Array, "N T"]]:
    """log π(target) and the entropy of π at `temperature`, `chunk` tokens at a time."""
    shape = targets.shape
    tokens = targets.size
    chunk = min(chunk, tokens)
    padding = -tokens % chunk
    flat_hidden = jnp.pad(hidden.reshape(tokens, -1), ((0, padding), (0, 0))).reshape(
        -1, chunk, hidden.shape[-1]
    )
    flat_targets = jnp.pad(targets.reshape(tokens), (0, padding)).reshape(-1, chunk)

    @jax.checkpoint
    def one_chunk(inputs):
        h, target = inputs
        scaled = logits(h).astype(jnp.float32) / temperature
        log_z = jax.nn.logsumexp(scaled, axis=-1)
        log_prob = jnp.take_along_axis(scaled, target[:, None], axis=-1)[:, 0] - log_z
        entropy = log_z - jnp.sum(jax.nn.softmax(scaled) * scaled, axis=-1)
        return log_prob, entropy

    log_prob, entropy = jax.lax.map(one_chunk, (flat_hidden, flat_targets))
    return log_prob.reshape(-1)[:tokens].reshape(shape), entropy.reshape(-1)[:tokens].reshape(shape)
