"""Where the model meets the mathematics: log-probabilities and entropies of sampled completions.

The [N, T, V] logits of at most `kept_logits` tokens wait for the backward pass; if there are more tokens, none do, and
logits are computed again block by block (`grpo_jax.models.head`). Then nothing is as large as they would be.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx

from grpo_jax.models import attention
from grpo_jax.models.head import log_prob_and_entropy
from grpo_jax.training import layouts, sizes
from grpo_jax.training.sizes import LogProbs
from grpo_jax.types import Batch


def make_log_probs(
    graphdef: nnx.GraphDef, *, temperature: float, kept_logits: int, layout: layouts.Layout = layouts.plain
) -> LogProbs:
    """A function (params, batch) -> (log_probs [N, T], entropy [N, T]) of the policy at `temperature`.

    `kept_logits` is the number of tokens per data shard whose logits may wait for the backward pass. Values beyond a
    completion's length are finite and mean nothing; the caller masks.
    """

    def log_probs(params: Any, batch: Batch):
        decoder = nnx.merge(graphdef, params)
        rows = layout(batch)
        hidden, _ = decoder(rows.ids, rows.positions, rows.attend)
        hidden = rows.predicting(hidden)
        values = log_prob_and_entropy(
            decoder.unembedding,
            hidden,
            rows.targets,
            temperature=temperature,
            keep_logits=rows.targets.size <= kept_logits,
        )
        return jax.tree.map(rows.restore, values)

    return log_probs


def make_sized_log_probs(
    graphdef: nnx.GraphDef,
    *,
    temperature: float,
    kept_logits: int,
    layout: layouts.Name,
    group_size: int,
    number_of_sizes: int,
    attend_by: layouts.Attention = "einsum",
) -> LogProbs:
    """The same in a layout by name, at the smallest size that holds a micro-batch.

    Names come from `layouts.choose` and `layouts.choose_attention`, which know what "auto" is.
    """
    product = attention.cudnn if attend_by == "cudnn" else attention.einsum
    make = partial(make_log_probs, graphdef, temperature=temperature, kept_logits=kept_logits)
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


def tokens_within(memory_mib: int, *, vocab_size: int) -> int:
    """Tokens whose float32 logits fit into `memory_mib`."""
    return (memory_mib << 20) // (4 * vocab_size)
