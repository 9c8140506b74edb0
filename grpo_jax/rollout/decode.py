"""The device side of sampling: prefill once per prompt, then a token per completion and step until all
stop.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.rollout import cache as kv
from grpo_jax.rollout.keys import uniforms
from grpo_jax.rollout.sampling import choose


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Completions:
    """What has been sampled so far. Entries at and beyond `lengths` are zero."""

    ids: Int[Array, "B G T"]
    lengths: Int[Array, "B G"]
    stopped: Bool[Array, "B G"]
    log_probs: Float[Array, "B G T"]
    full_log_probs: Float[Array, "B G T"]


@partial(jax.jit, static_argnames=("graphdef", "max_tokens", "top_k"))
def complete(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    prompt_ids: Int[Array, "B P"],
    prompt_lengths: Int[Array, "B"],
    keys: Key[Array, "B G"],
    stop_ids: Int[Array, "K"],
    knobs: dict[str, Float[Array, ""]],
    *,
    max_tokens: int,
    top_k: int,
) -> tuple[Completions, Int[Array, ""]]:
    """Completions of every prompt, one per key, and the steps it took. A prompt of length 0 is padding.

    `stop_ids` are data (−1 matches nothing), as are the temperature, top-p and min-p in `knobs`: other values
    take effect without another compilation. Only which knobs there are is compiled in.
    """
    decoder = nnx.merge(graphdef, params)
    (B, P), G = prompt_ids.shape, keys.shape[1]
    cache = kv.empty(decoder.config, prompts=B, prompt_tokens=P, group_size=G, tokens=max(max_tokens - 1, 1))
    positions = jnp.broadcast_to(jnp.arange(P), (B, P))
    hidden, cache = decoder(prompt_ids, positions, kv.prefill(prompt_lengths, P), cache)
    last = jnp.take_along_axis(hidden, jnp.maximum(prompt_lengths - 1, 0)[:, None, None], axis=1)
    logits = jnp.broadcast_to(decoder.logits(last), (B, G, decoder.config.vocab_size))

    def record(out: Completions, logits, step) -> Completions:
        """Draws the token at `step` of every completion that is not over."""
        over = out.stopped | (prompt_lengths == 0)[:, None]
        draw = choose(logits, uniforms(keys, jnp.full(keys.shape, step)), top_k=top_k, **knobs)
        put = partial(jax.lax.dynamic_update_index_in_dim, index=step, axis=2)
        return Completions(
            ids=put(out.ids, jnp.where(over, 0, draw.ids)),
            lengths=out.lengths + jnp.where(over, 0, 1),
            stopped=over | (draw.ids[..., None] == stop_ids[None, None]).any(-1),
            log_probs=put(out.log_probs, jnp.where(over, 0.0, draw.log_probs)),
            full_log_probs=put(out.full_log_probs, jnp.where(over, 0.0, draw.full_log_probs)),
        )

    def going(carry):
        step, out, _ = carry
        return (step < max_tokens) & ~out.stopped.all()

    def advance(carry):
        step, out, cache = carry
        token = jax.lax.dynamic_index_in_dim(out.ids, step - 1, axis=2)
        position = jnp.broadcast_to((prompt_lengths + step - 1)[:, None, None], (B, G, 1))
        hidden, cache = decoder(token, position, kv.decode(prompt_lengths, step - 1, cache), cache)
        return step + 1, record(out, decoder.logits(hidden[:, :, 0]), step), cache

    shape = (B, G, max_tokens)
    out = Completions(
        ids=jnp.zeros(shape, jnp.int32),
        lengths=jnp.zeros((B, G), jnp.int32),
        stopped=jnp.zeros((B, G), bool),
        log_probs=jnp.zeros(shape, jnp.float32),
        full_log_probs=jnp.zeros(shape, jnp.float32),
    )
    steps, out, _ = jax.lax.while_loop(going, advance, (jnp.int32(1), record(out, logits, 0), cache))
    return out, steps
