"""Where the model meets the mathematics: log-probabilities and entropies of sampled completions.

The [N, T, V] logits never exist beyond `head_chunk` tokens: the head runs over chunks of the completions' columns, and
each chunk's logits are computed again in the backward pass. Where all tokens fit into one chunk nothing is computed
twice.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from grpo_jax.models import attention
from grpo_jax.models.axes import pick
from grpo_jax.training import layouts, sizes
from grpo_jax.training.sizes import LogProbs
from grpo_jax.types import Batch


def make_log_probs(
    graphdef: nnx.GraphDef, *, temperature: float, head_chunk: int, layout: layouts.Layout = layouts.plain
) -> LogProbs:
    """A function (params, batch) -> (log_probs [N, T], entropy [N, T]) of the policy at `temperature`.

    `head_chunk` is the number of tokens per device whose logits exist at one time. Values beyond a completion's length
    are finite and mean nothing; the caller masks.
    """

    def log_probs(params: Any, batch: Batch):
        decoder = nnx.merge(graphdef, params)
        rows = layout(batch)
        hidden, _ = decoder(rows.ids, rows.positions, rows.attend)
        hidden = rows.predicting(hidden)
        values = chunked_log_probs(
            decoder.logits, hidden, rows.targets, temperature=temperature, chunk=head_chunk
        )
        return jax.tree.map(rows.restore, values)

    return log_probs


def make_sized_log_probs(
    graphdef: nnx.GraphDef,
    *,
    temperature: float,
    head_chunk: int,
    layout: layouts.Name,
    group_size: int,
    number_of_sizes: int,
    attend_by: layouts.Attention = "einsum",
) -> LogProbs:
    """The same in a layout by name, at the smallest size that holds a micro-batch.

    Names come from `layouts.choose` and `layouts.choose_attention`, which know what "auto" is.
    """
    product = attention.cudnn if attend_by == "cudnn" else attention.einsum
    make = partial(make_log_probs, graphdef, temperature=temperature, head_chunk=head_chunk)
    if layout == "packed":
        return sizes.packed_rows(
            lambda rows: make(layout=partial(layouts.packed, rows=rows, product=product)),
            sizes=number_of_sizes,
        )
    if layout == "group":
        return sizes.columns(
            make(layout=layouts.group(group_size, by_kernel=attend_by == "splash")),
            sizes=number_of_sizes,
            group_size=group_size,
        )
    return sizes.columns(make(layout=partial(layouts.plain, product=product)), sizes=number_of_sizes)


def chunked_log_probs(
    logits: Callable,
    hidden: Float[Array, "N T D"],
    targets: Int[Array, "N T"],
    *,
    temperature: float,
    chunk: int,
) -> tuple[Float[Array, "N T"], Float[Array, "N T"]]:
    """log π(target) and the entropy of π at `temperature`, some columns of about `chunk` tokens at a time.

    Chunks are of columns, never of rows, so that rows may be sharded.
    """

    def of_columns(hidden, targets):
        flat = logits(hidden.reshape(-1, hidden.shape[-1])).astype(jnp.float32) / temperature
        values = log_prob_and_entropy(flat, targets.reshape(-1))
        return jax.tree.map(lambda x: x.reshape(targets.shape), values)

    N, T = targets.shape
    if chunk >= N * T:
        return of_columns(hidden, targets)
    columns = max(chunk // N, 1)
    chunks = -(-T // columns)
    columns = -(-T // chunks)  # even chunks, to pad as little as may be
    padding = chunks * columns - T

    def cut(x):
        x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(N, chunks, columns, *x.shape[2:]), 1, 0)

    def joined(x):
        return jnp.moveaxis(x, 0, 1).reshape(N, -1)[:, :T]

    one_chunk = jax.checkpoint(lambda pair: of_columns(*pair), prevent_cse=False)
    return jax.tree.map(joined, jax.lax.map(one_chunk, (cut(hidden), cut(targets))))


def head_chunk_within(memory_mib: int, *, vocab_size: int) -> int:
    """Tokens whose float32 logits, and the gradients of these, fit into `memory_mib`."""
    return max((memory_mib << 20) // (2 * 4 * vocab_size), 1)


@jax.custom_vjp
def log_prob_and_entropy(
    logits: Float[Array, "... V"], targets: Int[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """log softmax(logits)[target], and −Σ p log p, with one exponential per logit and one more for the gradient.

    The gradient is written out because autodiff keeps several arrays of the size of the logits, where the logits and two
    numbers per token are enough.
    """
    return _forward(logits, targets)[0]


def _forward(logits, targets):
    top = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    shifted = logits - top
    weight = jnp.exp(shifted)
    total = weight.sum(-1)
    log_z = jnp.log(total)
    entropy = log_z - (weight * shifted).sum(-1) / total
    chosen = pick(shifted, targets)
    return (chosen - log_z, entropy), (logits, targets, top[..., 0] + log_z, entropy)


def _backward(residuals, cotangents):
    """∂log π(y)/∂s_v = [v = y] − p_v and ∂H/∂s_v = −p_v (log p_v + H)."""
    logits, targets, log_z, entropy = residuals
    of_log_prob, of_entropy = (cotangent[..., None] for cotangent in cotangents)
    log_p = logits - log_z[..., None]
    is_target = jnp.arange(logits.shape[-1]).reshape((1,) * targets.ndim + (-1,)) == targets[..., None]
    pull = of_log_prob + of_entropy * (log_p + entropy[..., None])
    return jnp.where(is_target, of_log_prob, 0.0) - jnp.exp(log_p) * pull, None


log_prob_and_entropy.defvjp(_forward, _backward)
