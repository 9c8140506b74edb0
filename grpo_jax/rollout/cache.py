"""The keys and values of what has been read: a prompt's once for its whole group, a completion's its own.

Two attends for the decoder: `prefill` fills the prompt part, `decode` reads it, and writes and reads the
completion part. Positions are already rotated into the keys, so a column's place in the cache means nothing.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.models.attention import Attend, attention, packed
from grpo_jax.models.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Both parts, stacked over layers."""

    prompt_key: Float[Array, "layers B P K h"]
    prompt_value: Float[Array, "layers B P K h"]
    key: Float[Array, "layers B G T K h"]
    value: Float[Array, "layers B G T K h"]


def empty(config: ModelConfig, *, prompts: int, prompt_tokens: int, group_size: int, tokens: int) -> Cache:
    heads = (config.num_kv_heads, config.head_dim)
    prompt = jnp.zeros((config.num_layers, prompts, prompt_tokens, *heads), config.dtype)
    own = jnp.zeros((config.num_layers, prompts, group_size, tokens, *heads), config.dtype)
    return Cache(prompt_key=prompt, prompt_value=prompt, key=own, value=own)


def prefill(prompt_lengths: Int[Array, "B"], P: int) -> Attend:
    """Causal attention within prompts right-padded to P, whose keys and values are kept."""
    column = jnp.arange(P)[None, :]
    real = column < prompt_lengths[:, None]
    within = packed(jnp.where(real, 0, -1), jnp.broadcast_to(column, real.shape))

    def attend(query, key, value, layer, window, cache):
        out, _ = within(query, key, value, layer, window, None)
        prompt_key = jax.lax.dynamic_update_index_in_dim(cache.prompt_key, key, layer, 0)
        prompt_value = jax.lax.dynamic_update_index_in_dim(cache.prompt_value, value, layer, 0)
        return out, Cache(prompt_key, prompt_value, cache.key, cache.value)

    return attend


def decode(prompt_lengths: Int[Array, "B"], step: Int[Array, ""], cache: Cache) -> Attend:
    """One new token per completion, written at column `step`: it sees its prompt and its own tokens so
    far.
    """
    prompt_column = jnp.arange(cache.prompt_key.shape[2])[None, :]
    own_column = jnp.arange(cache.key.shape[3])
    distance = prompt_lengths[:, None] + step - prompt_column  # [B, P]
    in_prompt = prompt_column < prompt_lengths[:, None]
    in_completion = own_column <= step

    def attend(query, key, value, layer, window, cache):
        start = (layer, 0, 0, step, 0, 0)
        own_key = jax.lax.dynamic_update_slice(cache.key, key[None], start)
        own_value = jax.lax.dynamic_update_slice(cache.value, value[None], start)
        prompt_mask, own_mask = in_prompt, in_completion
        if window is not None:
            prompt_mask &= (window == 0) | (distance < window)
            own_mask &= (window == 0) | (step - own_column < window)
        parts = [
            (
                cache.prompt_key[layer][:, None],
                cache.prompt_value[layer][:, None],
                prompt_mask[:, None, None],
            ),
            (own_key[layer], own_value[layer], own_mask[None, None, None]),
        ]
        return attention(query, parts), Cache(cache.prompt_key, cache.prompt_value, own_key, own_value)

    return attend
