"""Where arrays live, and sums over devices: parameters as `models.axes` says, batch rows over data and fsdp."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from grpo_jax.models.axes import DATA, FSDP, MESH_AXES, TENSOR, ShardingRule, parameter_sharding
from grpo_jax.models.config import ModelConfig
from grpo_jax.types import Batch

AXES = (DATA, FSDP, TENSOR)
ROWS = PartitionSpec(MESH_AXES["rows"])
HOST = "pinned_host"


def make_mesh(data: int, fsdp: int = 1, tensor: int = 1) -> Mesh:
    """A mesh of the first data × fsdp × tensor devices."""
    sizes = (data, fsdp, tensor)
    devices = jax.devices()[: data * fsdp * tensor]
    return jax.make_mesh(sizes, AXES, devices=devices, axis_types=(AxisType.Auto,) * 3)


def sampling_mesh(mesh: Mesh, *, devices: int, tensor: int) -> Mesh:
    """Where rollouts are sampled: on the last `devices` devices there are, or on those of `mesh` if that is 0.

    With several hosts it is the devices of `mesh` that are this host's, since each samples its own share.
    """
    if not devices:
        return without_fsdp(mesh.local_mesh)
    where = np.array(jax.devices()[-devices:]).reshape(-1, 1, tensor)
    return Mesh(where, AXES, axis_types=(AxisType.Auto,) * 3)


def without_fsdp(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """The devices of `mesh` with fsdp as more of data: no axis splits parameters that every decode step would have to
    gather.
    """
    tensor = mesh.shape[TENSOR]
    sizes, axis_types = (mesh.size // tensor, 1, tensor), (AxisType.Auto,) * 3
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(sizes, AXES, axis_types=axis_types)
    return Mesh(mesh.devices.reshape(sizes), AXES, axis_types=axis_types)


def platform(mesh: Mesh | AbstractMesh) -> str:
    """What the devices are: cpu, gpu or tpu; cpu where a mesh is of no devices, and only shapes are asked for."""
    return "cpu" if isinstance(mesh, AbstractMesh) else mesh.devices.flat[0].platform


def row_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are split."""
    return mesh.shape[DATA] * mesh.shape[FSDP]


def axis_name(mesh: Mesh) -> str | None:
    """The axis to sum over, or None where there is one data shard, and the same code runs without a collective."""
    return DATA if mesh.shape[DATA] > 1 else None


def rule_of(mesh: Mesh, config: ModelConfig) -> ShardingRule:
    """The table of `models.axes` for this mesh and architecture."""
    return lambda name, shape: parameter_sharding(name, shape, mesh=mesh, config=config)


def shardings(tree: Any, rule: ShardingRule) -> Any:
    """The sharding of every array of `tree` (or of every shape: arrays need not exist yet)."""
    return jax.tree_util.tree_map_with_path(lambda path, x: rule(dotted(path), x.shape), tree)


def dotted(path: tuple) -> str:
    """A key path as a name, without the variables that nnx wraps its leaves in."""
    names = [str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path]
    while names[-1] in ("value", "raw_value"):  # at the end alone: attention has a projection of this name
        names.pop()
    return ".".join(names)


def build(function: Callable, rule: ShardingRule, *arguments: Any) -> Any:
    """function(*arguments), every array of it made where it shall live: none is ever whole on one device."""
    where = shardings(jax.eval_shape(function, *arguments), rule)
    return jax.jit(function, out_shardings=where)(*arguments)


def place(tree: Any, rule: ShardingRule) -> Any:
    """Every array of `tree` where it shall live, in buffers of its own, because an update donates them.

    Two leaves that are one array become two: donating one buffer twice crashes the process.
    """
    return build(lambda tree: jax.tree.map(jnp.copy, tree), rule, tree)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Every array of `tree` whole on every device, in buffers of its own."""
    return place(tree, lambda name, shape: NamedSharding(mesh, PartitionSpec()))


def to_pinned(tree: Any) -> Any:
    """Every array of `tree` in the host's pinned memory, split over the hosts' devices as before."""
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind(HOST)), tree)


def to_devices(tree: Any) -> Any:
    """Every array of `tree` in its devices' memory, which those that are there already keep."""
    return jax.tree.map(lambda x: jax.device_put(x, x.sharding.with_memory_kind("device")), tree)


def has_host_memory(mesh: Mesh) -> bool:
    """Whether arrays of this mesh can live in its hosts' memory."""
    return all(HOST in {memory.kind for memory in d.addressable_memories()} for d in mesh.local_devices)


def split_rows(batch: Batch, mesh: Mesh) -> Batch:
    """The rows of `batch`, whose number `row_shards` divides, dealt to the devices: each host's to its own."""
    where = NamedSharding(mesh, ROWS)
    if jax.process_count() == 1:
        return jax.device_put(batch, where)
    return jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, where, lambda index: x[index]), batch)


def to_host(x: jax.Array) -> np.ndarray:
    """The whole array, on every host."""
    return np.asarray(x if x.is_fully_replicated else multihost_utils.process_allgather(x, tiled=True))


def own(tree: Any, mesh: Mesh) -> Any:
    """The arrays of `tree`, which are split over fsdp and tensor, on this host's devices alone; no more than a view.

    Along an axis that spans hosts they are gathered first, so that every host has them all.
    """
    if jax.process_count() == 1:
        return tree
    local = mesh.local_mesh
    spanning = {axis for axis in mesh.axis_names if local.shape[axis] < mesh.shape[axis]}

    def of(x: jax.Array) -> jax.Array:
        spec = PartitionSpec(*[None if part in spanning else part for part in x.sharding.spec])
        if spec != x.sharding.spec:
            x = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, spec))(x)
        parts = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, NamedSharding(local, spec), parts)

    return jax.tree.map(of, tree)


def pad_rows(batch: Batch, multiple: int) -> Batch:
    """`batch` with padding rows up to a multiple of `multiple`.

    A padding row has group −1, no token that trains, and lengths of one so that nothing divides by zero.
    """
    n = batch.group_ids.shape[0]
    missing = -n % multiple
    if not missing:
        return batch
    padded = jax.tree.map(lambda x: np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)]), batch)
    padded.group_ids[n:] = -1
    padded.prompt_lengths[n:] = 1
    return padded


def per_shard(
    function: Callable, mesh: Mesh, in_specs: Any, out_specs: Any, *, kernels: bool = False
) -> Callable:
    """`function` run once per data shard on its own rows; on a mesh with one it is run as it is.

    Manual over the data axis only: fsdp and tensor stay with the partitioner, which reads the constraints that the
    function puts on its arrays in the context of this mesh. What `kernels` give is not marked as different per device, so
    with these JAX cannot check that nothing is summed twice; tests without kernels do.
    """
    if axis_name(mesh) is None:  # a manual axis of size 1 aborts on CPU

        def whole(*arguments):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return function(*arguments)

        return whole
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={DATA}, check_vma=not kernels
    )


def varying(tree: Any, mesh: Mesh) -> Any:
    """Marks replicated values as different per device, so that gradients with respect to them stay local.

    Without this a gradient inside shard_map is summed over devices at once, and a later psum would count it again.
    """
    if axis_name(mesh) is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.pcast(x, DATA, to="varying"), tree)


def psum(tree: Any, mesh: Mesh) -> Any:
    """The sum over the data axis."""
    return tree if axis_name(mesh) is None else jax.lax.psum(tree, DATA)


def accumulators(tree: Any) -> Any:
    """Zeros shaped and varying like `tree`, in float32 at least: small gradients would be lost in a bfloat16 sum."""
    return jax.tree.map(lambda x: jnp.zeros_like(x).astype(jnp.promote_types(x.dtype, jnp.float32)), tree)


Specs = tuple[PartitionSpec, ...]
"""How each leaf of a tree is split: hashable, and so a static argument."""


def specs_of(tree: Any) -> Specs:
    """How the arrays of `tree` are split now."""
    return tuple(getattr(x.sharding, "spec", PartitionSpec()) for x in jax.tree.leaves(tree))


def keep(tree: Any, specs: Specs, mesh: Mesh, *, manual: bool = False) -> Any:
    """`tree` split by `specs`: state leaves a step as it came in, and gradients accumulate as their parameters lie.

    `manual` says that this is inside `per_shard`, whose context names the mesh.
    """
    if mesh.size == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    where = [spec if manual else NamedSharding(mesh, spec) for spec in specs]
    return structure.unflatten(map(jax.lax.with_sharding_constraint, leaves, where))
