"""The decode program at the size a call of the engine ends with, for compiling it before there is anything to sample."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from grpo_jax.models.config import ModelConfig
from grpo_jax.rollout import decode
from grpo_jax.rollout.buckets import Sizes
from grpo_jax.rollout.cache import Seating
from grpo_jax.rollout.settings import Sampling

STOP_IDS = 8  # as many as one padded list of them holds


def decode_arguments(
    config: ModelConfig, *, sizes: Sizes, sampling: Sampling, prompts: int
) -> tuple[decode.State, Seating, decode.Rules, jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Shapes of `decode.decode`'s arguments after the parameters, with all slots taken and every column in use."""
    G, T = sampling.group_size, sampling.max_tokens
    slots = sizes.slots_for(prompts * G)
    rows = sizes.rows_for(slots, G, prompts)
    most = max(T - 1, 1)  # the last token is never read
    start = partial(
        decode.start,
        config,
        rows=rows,
        prompt_tokens=sizes.prompt_tokens_for(sizes.max_prompt_length),
        slots=slots,
        columns=sizes.columns_for(most, most),
        max_tokens=T,
        penalised=sampling.repetition_penalty != 1,
    )

    def shape(*dims: int, dtype: Any = jnp.int32):
        return jax.ShapeDtypeStruct(dims, dtype)

    number = shape(dtype=jnp.float32)
    knobs = {"temperature": number} | ({"top_p": number} if sampling.top_p < 1 else {})
    rules = decode.Rules(
        knobs=knobs, stop_ids=shape(STOP_IDS), bias=None, repetition_penalty=None, top_k=sampling.top_k
    )
    seating = Seating(row=shape(slots), lane=shape(slots), slot=shape(rows, min(G, slots)))
    return jax.eval_shape(start), seating, rules, shape(), shape()


def lower_decode(graphdef: nnx.GraphDef, params: Any, arguments: tuple) -> jax.stages.Lowered:
    """The decode program of these shapes, ready to compile."""
    state, *rest = arguments
    return decode.decode.lower(graphdef, params, state, *rest)
