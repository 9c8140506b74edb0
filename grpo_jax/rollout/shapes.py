"""The decode program at the size a call of the engine ends with, for compiling it before there is anything to sample."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from grpo_jax.models.axes import DATA, FSDP, TENSOR
from grpo_jax.models.config import ModelConfig
from grpo_jax.rollout import decode, weights
from grpo_jax.rollout.buckets import Sizes
from grpo_jax.rollout.cache import Cache, Seating
from grpo_jax.rollout.engine import STOP_ID_MULTIPLE
from grpo_jax.rollout.settings import Sampling


class Arguments(NamedTuple):
    """Shapes of what `decode.decode` reads."""

    params: Any
    state: decode.State
    rest: tuple[Any, ...]
    """Seating, rules, the most steps, and the number of slots to leave at."""


def decode_arguments(
    config: ModelConfig,
    params: Any,
    *,
    sizes: Sizes,
    sampling: Sampling,
    prompts: int,
    mesh: Mesh | AbstractMesh,
    quantize: weights.Quantize = "none",
) -> Arguments:
    """Arguments with all slots taken and every column in use; `params` are the trainer's, as shapes."""
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
        positions_first=sizes.positions_first,
    )

    def shape(*dims: int, dtype: Any = jnp.int32):
        return jax.ShapeDtypeStruct(dims, dtype)

    number = shape(dtype=jnp.float32)
    used = {"temperature": True, "top_p": sampling.top_p < 1, "min_p": sampling.min_p > 0}
    biased = sampling.logit_bias or sampling.forbidden_ids
    rules = decode.Rules(
        knobs={name: number for name, is_used in used.items() if is_used},
        stop_ids=shape(STOP_ID_MULTIPLE),
        bias=shape(config.vocab_size, dtype=jnp.float32) if biased else None,
        repetition_penalty=None if sampling.repetition_penalty == 1 else number,
        top_k=sampling.top_k,
    )
    seating = Seating(row=shape(slots), lane=shape(slots), slot=shape(rows, min(G, slots)))
    params = jax.eval_shape(partial(weights.converted, config=config, quantize=quantize), params)
    arguments = Arguments(params, jax.eval_shape(start), (seating, rules, shape(), shape()))
    return _placed(arguments, config, mesh)


def _placed(arguments: Arguments, config: ModelConfig, mesh: Mesh | AbstractMesh) -> Arguments:
    """The arguments as `weights.prepared` and `decode.placed` put them on a mesh."""

    def at(tree: Any, *spec: Any) -> Any:
        where = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree)

    state, heads = arguments.state, TENSOR if config.num_kv_heads % mesh.shape[TENSOR] == 0 else None
    rows, cache = (DATA, FSDP), arguments.state.cache
    own = (None, rows, None, heads) if cache.positions_first else (None, rows, heads)
    where = weights.shardings(arguments.params, config, mesh)
    return Arguments(
        jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arguments.params, where
        ),
        decode.State(
            cache=Cache(
                prompt_key=at(cache.prompt_key, None, rows, heads),
                prompt_value=at(cache.prompt_value, None, rows, heads),
                key=at(cache.key, *own),
                value=at(cache.value, *own),
                positions_first=cache.positions_first,
            ),
            slots=at(state.slots),
            first_logits=at(state.first_logits, rows),
        ),
        at(arguments.rest),
    )


def lower_decode(graphdef: nnx.GraphDef, arguments: Arguments, mesh: Mesh) -> jax.stages.Lowered:
    """The decode program of these shapes, ready to compile."""
    with jax.set_mesh(mesh):
        return decode.decode.lower(graphdef, arguments.params, arguments.state, *arguments.rest)
