"""Where arrays live: parameters on every device of the data axis, batch rows split over it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grpo_jax.types import Batch

DATA = "data"


def make_mesh(data: int) -> Mesh:
    """A mesh of `data` devices along the data axis."""
    return jax.make_mesh(
        (data,), (DATA,), devices=jax.devices()[:data], axis_types=(jax.sharding.AxisType.Auto,)
    )


def axis_name(mesh: Mesh) -> str | None:
    """The axis to sum over, or None on one device, where the same code runs without a collective."""
    return DATA if mesh.shape[DATA] > 1 else None


def replicate(tree, mesh: Mesh):
    """Every array of `tree` whole on every device, in buffers of its own, because an update donates them.

    The copy comes first: device_put gives two leaves that are one array the same buffers, and donating those twice
    crashes the process.
    """
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(jnp.copy(x), sharding), tree)


def split_rows(batch: Batch, mesh: Mesh) -> Batch:
    """The rows of `batch` dealt to the devices of the data axis."""
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(DATA)))


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


def per_shard(function, mesh: Mesh, in_specs, out_specs):
    """`function` run once per device of the data axis on its own rows; unchanged on a mesh of one.

    Manual over the data axis only, so that other axes stay with the partitioner.
    """
    if axis_name(mesh) is None:
        return function  # a manual axis of size 1 aborts on CPU
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={DATA})


def varying(tree, mesh: Mesh):
    """Marks replicated values as different per device, so that gradients with respect to them stay local.

    Without this a gradient inside shard_map is summed over devices at once, and a later psum would count it again.
    """
    if axis_name(mesh) is None:
        return tree
    return jax.tree.map(lambda x: jax.lax.pcast(x, DATA, to="varying"), tree)


def psum(tree, mesh: Mesh):
    """The sum over the data axis."""
    return tree if axis_name(mesh) is None else jax.lax.psum(tree, DATA)


def zeros_like(tree):
    """Zeros shaped, typed and varying like `tree`."""
    return jax.tree.map(jnp.zeros_like, tree)
