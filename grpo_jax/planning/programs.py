"""What a run compiles, with shapes in place of arrays: the same functions that training calls, on any mesh.

On a mesh of real or described devices the programs can be compiled. On an abstract mesh they can only be measured: every
shape knows its share per device.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from grpo_jax import experiment, keys
from grpo_jax.config import Config
from grpo_jax.losses import objective as objectives
from grpo_jax.models import lora
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.planning.targets import Target
from grpo_jax.rollout import shapes
from grpo_jax.rollout.buckets import Sizes
from grpo_jax.rollout.engine import CHUNK, SLOTS
from grpo_jax.rollout.settings import Sampling
from grpo_jax.training import programs, sharding
from grpo_jax.training.policy import architecture_of, sized_for
from grpo_jax.types import Batch, TrainState

NAMES = ("update", "log_probs", "decode")


class Program(NamedTuple):
    """One compiled function of a run."""

    lower: Callable[[], jax.stages.Lowered]
    arguments: Mapping[str, Any]
    """Its arguments by what they are."""
    beside: Mapping[str, Any]
    """What else lies on the devices while it runs."""


class Shapes(NamedTuple):
    """A config's programs on a mesh, and the state they work on."""

    architecture: ModelConfig
    programs: dict[str, Program]
    state: TrainState
    built: programs.Programs
    head_tokens: int
    """Tokens per device whose logits exist at one time."""


def architecture_for(config: Config) -> ModelConfig:
    """The architecture of a config; the tokenizer is asked only where the config leaves the vocabulary to it."""
    architecture = architecture_of(config.model)
    if architecture.vocab_size:
        return architecture
    from grpo_jax.training.setup import tokenizer_of

    return sized_for(architecture, tokenizer_of(config))


def abstract_mesh(config: Config, target: Target) -> AbstractMesh:
    """The mesh of a config on a target that need not be described to JAX."""
    sizes = experiment.mesh_shape(config.mesh, devices=target.devices)
    names = (sharding.DATA, sharding.FSDP, sharding.TENSOR)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * 3)


def shapes_of(config: Config, *, mesh: Mesh | AbstractMesh) -> Shapes:
    """Programs and state of a config, at the largest size of a micro-batch: the one that must fit."""
    config = replace(config, update=replace(config.update, sizes=1))
    architecture = architecture_for(config)
    built = programs.build(config, architecture, mesh=mesh)
    state = _state(config, built, mesh)
    batch = _batch(config, built, mesh)
    decode = shapes.decode_arguments(
        built.policy.config,
        sizes=Sizes(config.rollout.max_prompt_length, SLOTS, CHUNK, fixed=False),
        sampling=Sampling(
            temperature=config.rollout.temperature,
            top_k=config.rollout.top_k,
            top_p=config.rollout.top_p,
            max_tokens=config.rollout.max_completion_length,
            group_size=config.rollout.group_size,
        ),
        prompts=config.rollout.batch_size,
    )
    decode = _placed(decode, NamedSharding(mesh, PartitionSpec()))
    policy = lora.join(state.params, state.frozen)
    whole = _batch(config, built, mesh, whole=True)
    sampling_state = {"cache": decode[0].cache, "slots": replace(decode[0], cache=None)}
    sampler, at_update = state.sampler_params, replace(state, sampler_params=None)
    # With a lag the sampler decodes under parameters of its own while the update runs.
    sampling_now = {"sampler's parameters": sampler, **sampling_state} if config.rollout.lag else {}
    rest = {"moments": state.optimizer, "reference": state.ref_params}
    found = {
        "update": Program(
            partial(built.update.lower, at_update, batch),
            {"parameters": policy, **rest, "batch": batch},
            sampling_now,
        ),
        "log_probs": Program(
            partial(built.log_prob_pass.lower, policy, whole),
            {"parameters": policy, "batch": whole},
            {**rest, **sampling_now},
        ),
        "decode": Program(
            partial(shapes.lower_decode, built.policy.graphdef, policy, decode),
            {"parameters": policy, **sampling_state},
            {**rest, "sampler's parameters": sampler},
        ),
    }
    return Shapes(architecture, found, state, built, built.head_chunk // mesh.shape[sharding.FSDP])


def _state(config: Config, built: programs.Programs, mesh: Mesh | AbstractMesh) -> TrainState:
    """The state of the policy stage."""
    decoder = nnx.eval_shape(lambda: Decoder(built.policy.config, rngs=nnx.Rngs(0)))
    _, params, frozen = lora.split(decoder)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    state = TrainState(
        params=params,
        optimizer=jax.eval_shape(built.optimizer.init, params),
        key=jax.eval_shape(lambda: keys.run_key(config.run.seed)),
        step=number,
        warm=number,
        cursor=number,
        skipped=number,
        frozen=frozen if len(frozen) else None,
        ref_params=params if config.loss.kl_coef else None,
        sampler_params=params if config.rollout.lag else None,
        history=jax.eval_shape(lambda: objectives.init_history(built.objective)),
    )
    return _placed(state, sharding.shardings(state, built.policy.sharding))


def _batch(
    config: Config, built: programs.Programs, mesh: Mesh | AbstractMesh, *, whole: bool = False
) -> Batch:
    """A mini-batch, or the `whole` rollout as the log-prob pass reads it, padding rows included."""
    rollout = config.rollout
    mini_batches = rollout.batch_size // (config.update.mini_batch or rollout.batch_size)
    shards = sharding.row_shards(mesh)
    N = built.micro_batches * experiment.rows_per_device(config, shards=shards) * shards
    N, P, T = N * (mini_batches if whole else 1), rollout.max_prompt_length, rollout.max_completion_length

    def rows(*dims: int, dtype: Any = jnp.int32):
        return jax.ShapeDtypeStruct((N, *dims), dtype, sharding=NamedSharding(mesh, sharding.ROWS))

    number = jnp.float32
    refreshed = config.rollout.lag or config.update.epochs * mini_batches > 1
    return Batch(
        prompt_ids=rows(P),
        prompt_lengths=rows(),
        completion_ids=rows(T),
        completion_lengths=rows(),
        loss_mask=rows(T, dtype=jnp.bool_),
        group_ids=rows(),
        advantages=rows(dtype=number),
        sampler_log_probs=rows(T, dtype=number),
        sampler_full_log_probs=rows(T, dtype=number),
        old_log_probs=rows(T, dtype=number) if refreshed and not whole else None,
        ref_log_probs=rows(T, dtype=number) if config.loss.kl_coef and not whole else None,
    )


def _placed(tree: Any, where: Any) -> Any:
    """Shapes with a sharding each, from a tree of them or one for all."""
    if isinstance(where, NamedSharding):
        where = jax.tree.map(lambda _: where, tree)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, where)


def bytes_per_device(tree: Any) -> int:
    """What one device holds of the arrays of `tree`."""

    def size(x: jax.ShapeDtypeStruct) -> int:
        shard = x.sharding.shard_shape(x.shape)
        itemsize = 8 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize
        count = 1
        for dim in shard:
            count *= dim
        return count * itemsize

    return sum(map(size, jax.tree.leaves(tree)))
