"""LoRA: adapters onto a loaded model, what trains and what stays, and merging them in.

An adapted decoder is the same `Decoder` with `config.lora` set: sampler, update and export run the same code.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from grpo_jax.models.axes import ShardingRule
from grpo_jax.models.config import LoraConfig, ModelConfig
from grpo_jax.models.decoder import Adapter, Decoder


def split(decoder: Decoder) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
    """(structure, trainable, frozen), from which `nnx.merge` makes the decoder again.

    With adapters they alone are trainable and need optimizer state; without, all is and `frozen` is empty.
    """
    return nnx.split(decoder, Adapter if decoder.config.lora else nnx.Param, ...)


def join(trainable: nnx.State, frozen: nnx.State | None) -> nnx.State:
    """All parameters of a decoder from the two parts of `split`; no array is copied."""
    return trainable if frozen is None else nnx.merge_state(trainable, frozen)


def attach(
    decoder: Decoder, lora: LoraConfig, *, rngs: nnx.Rngs, sharding: ShardingRule | None = None
) -> Decoder:
    """The decoder with fresh adapters, which change nothing until they train. Its own parameters are shared.

    Args:
      decoder: a decoder without adapters.
      lora: which projections, and how wide.
      rngs: where the adapters' random half comes from.
      sharding: where each adapter lives; None leaves them on the default device.
    """
    if decoder.config.lora:
        raise ValueError("this model already has adapters; merge them before attaching others")
    config = dataclasses.replace(decoder.config, lora=lora)
    own = dict(nnx.to_flat_state(nnx.state(decoder)))

    def adapters(rngs: nnx.Rngs) -> nnx.State:
        # Under jit the rest of this fresh decoder is never computed.
        return nnx.state(Decoder(config, rngs=rngs), Adapter)

    structure, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    where = None
    if sharding:
        shapes = nnx.to_flat_state(jax.eval_shape(adapters, rngs))
        where = nnx.from_flat_state(
            [(path, leaf.replace(sharding(".".join(path), leaf.shape))) for path, leaf in shapes]
        )
    fresh = dict(nnx.to_flat_state(jax.jit(adapters, out_shardings=where)(rngs)))
    filled = [(path, own[path] if path in own else fresh[path]) for path, _ in nnx.to_flat_state(abstract)]
    return nnx.merge(structure, nnx.from_flat_state(filled))


def merge(decoder: Decoder) -> Decoder:
    """The plain decoder with W + (alpha / rank) A B in place of W: the same function up to rounding."""
    lora = decoder.config.lora
    if lora is None:
        return decoder
    config: ModelConfig = dataclasses.replace(decoder.config, lora=None)
    own: dict[tuple[Any, ...], Any] = dict(nnx.to_flat_state(nnx.state(decoder)))
    structure, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    filled = []
    for path, _ in nnx.to_flat_state(abstract):
        variable = own[path]
        adapter = (*path[:-1], "adapter")
        if path[-1] == "kernel" and (*adapter, "a") in own:
            a, b = own[*adapter, "a"][...], own[*adapter, "b"][...]
            variable = variable.replace(_merged(variable[...], a, b, lora.alpha / lora.rank))
        filled.append((path, variable))
    return nnx.merge(structure, nnx.from_flat_state(filled))


@jax.jit
def _merged(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    delta = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(jnp.float32) + scale * delta).astype(kernel.dtype)
