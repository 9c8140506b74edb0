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
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from grpo_jax import amounts, keys, validation
from grpo_jax.config import Config
from grpo_jax.models import lora
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.rollout import shapes as sampler
from grpo_jax.rollout.buckets import Sizes
from grpo_jax.rollout.engine import CHUNK
from grpo_jax.training import engines, layouts, programs, sharding
from grpo_jax.training.draws import sampling_of
from grpo_jax.training.states import first_state
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
    """A config's programs on a mesh, and the state they work on. A sampler with devices of its own is left out."""

    architecture: ModelConfig
    programs: dict[str, Program]
    state: TrainState
    built: programs.Programs
    kept_logits: int
    """Tokens per device whose logits may wait for the backward pass."""
    attention: str
    """How attention is computed on the platform: einsum, cudnn or splash."""


def abstract_mesh(config: Config, *, devices: int) -> AbstractMesh:
    """The mesh of a config on so many devices, of which there need not be any."""
    sizes = validation.mesh_shape(config.mesh, devices=devices)
    names = (sharding.DATA, sharding.FSDP, sharding.TENSOR)
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * 3)


def shapes_of(
    config: Config, architecture: ModelConfig, *, mesh: Mesh | AbstractMesh, platform: str
) -> Shapes:
    """Programs and state of a config, at the largest size of a micro-batch: the one that must fit.

    Args:
        config: the experiment.
        architecture: of its model, an embedding for every token included.
        mesh: of the trainer.
        platform: tpu, cuda or cpu, which the sampler's cache depends on.
    """
    asked = config.update.attention
    config = replace(config, update=replace(config.update, sizes=1))
    if isinstance(mesh, AbstractMesh):  # it has no devices to choose a kernel for, and no shape depends on it
        config = replace(config, update=replace(config.update, attention="auto"))
    built = programs.build(config, architecture, mesh=mesh)
    state = _state(config, built, mesh)
    batch = _batch(config, built, mesh)
    policy = lora.join(state.params, state.frozen)
    whole = _batch(config, built, mesh, whole=True)
    where = sharding.without_fsdp(mesh)
    decode = _decode(config, built, policy, where, platform=platform)
    sampling = {"sampler's weights": decode.params, **_apart(decode.state)}
    # With a lag the sampler decodes under parameters of its own while the update runs.
    at_update = replace(state, sampler_params=None)
    ahead = {"sampler's parameters": state.sampler_params} if config.rollout.lag else {}
    sampling_now = {**ahead, **sampling} if config.rollout.lag and not config.rollout.devices else ahead
    moments, reference = {"moments": state.optimizer}, {"reference": state.ref_params}
    waiting = {} if config.update.offload_reference else reference
    found = {
        "update": Program(
            partial(built.update.lower, at_update, batch),
            {"parameters": policy, **moments, "batch": batch},
            {**waiting, **sampling_now},
        ),
        "log_probs": Program(
            partial(built.log_prob_pass.lower, policy, whole),
            {"parameters": policy, "batch": whole},
            {**moments, **reference, **sampling_now},
        ),
    }
    if not config.rollout.devices:
        found["decode"] = Program(
            partial(sampler.lower_decode, built.policy.graphdef, decode, where),
            sampling,
            {"parameters": _not_shared(policy, decode.params), **moments, **waiting, **ahead},
        )
    attention = layouts.choose_attention(
        asked,
        layout=built.layout,
        platform=platform,
        model=built.policy.config,
        tensor=mesh.shape[sharding.TENSOR],
    )
    kept_logits = built.kept_logits // mesh.shape[sharding.FSDP]
    return Shapes(architecture, found, state, built, kept_logits, attention)


def _decode(
    config: Config,
    built: programs.Programs,
    policy: Any,
    mesh: Mesh | AbstractMesh,
    *,
    platform: str,
) -> sampler.Arguments:
    """What the engine of a run decodes with; see `engines.make_engine`."""
    rollout = config.rollout
    return sampler.decode_arguments(
        built.policy.config,
        policy,
        sizes=Sizes(
            engines.longest_prompt(rollout),
            engines.slots_on(mesh, rollout),
            CHUNK,
            fixed=False,
            positions_first=platform == "tpu",
            shards=sharding.row_shards(mesh),
        ),
        sampling=sampling_of(rollout),
        prompts=rollout.batch_size,
        mesh=mesh,
        quantize=rollout.quantize,
    )


def _apart(state: Any) -> dict[str, Any]:
    return {"cache": state.cache, "slots": replace(state, cache=None)}


def _not_shared(policy: Any, weights: Any) -> list[Any]:
    """The policy's arrays that the sampler does not use as they are: it has them in another dtype or place."""

    def kind(x: jax.ShapeDtypeStruct):
        return x.dtype, x.sharding.shard_shape(x.shape) if x.sharding else x.shape

    own, sampled = jax.tree.leaves(policy), jax.tree.leaves(weights)
    if len(own) != len(sampled):  # matrices in int8 come with their scales
        return own
    return [x for x, other in zip(own, sampled, strict=True) if kind(x) != kind(other)]


def _state(config: Config, built: programs.Programs, mesh: Mesh | AbstractMesh) -> TrainState:
    """The state of the policy stage."""
    decoder = nnx.eval_shape(lambda: Decoder(built.policy.config, rngs=nnx.Rngs(0)))
    _, params, frozen = lora.split(decoder)
    state = jax.eval_shape(
        lambda params: first_state(
            config,
            built.objective,
            params=params,
            optimizer=built.optimizer.init(params),
            key=keys.run_key(config.run.seed),
        ),
        params,
    )
    state = replace(state, frozen=frozen if len(frozen) else None)
    return _placed(state, sharding.shardings(state, built.policy.sharding))


def _batch(
    config: Config, built: programs.Programs, mesh: Mesh | AbstractMesh, *, whole: bool = False
) -> Batch:
    """A mini-batch, or the `whole` rollout as the log-prob pass reads it, padding rows included."""
    rollout = config.rollout
    mini_batches = amounts.mini_batches(config)
    shards = sharding.row_shards(mesh)
    N = built.micro_batches * amounts.rows_per_device(config, shards=shards) * shards
    N, P, T = N * (mini_batches if whole else 1), rollout.max_prompt_length, rollout.max_completion_length

    def rows(*dims: int, dtype: Any = jnp.int32):
        return jax.ShapeDtypeStruct((N, *dims), dtype, sharding=NamedSharding(mesh, sharding.ROWS))

    number = jnp.float32
    refreshed = config.rollout.lag or config.update.epochs * mini_batches > 1
    refreshed |= config.update.old_log_probs == "sampler"
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
        shard = x.sharding.shard_shape(x.shape) if x.sharding else x.shape  # of one device
        itemsize = 8 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize
        count = 1
        for dim in shard:
            count *= dim
        return count * itemsize

    return sum(map(size, jax.tree.leaves(tree)))
