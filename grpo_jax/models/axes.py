"""Which dimension of which array is split over which axis of the device mesh: one table.

The mesh has three axes. `data` holds copies of the model, each with its own rows of the batch; `fsdp` splits the
rows further and cuts the parameters along their width, to be gathered layer by layer; `tensor` splits heads, MLP
and vocabulary, and every device of it works on the same rows.

A dimension is split only into equal parts, heads only between one another: one that an axis does not divide stays
whole along that axis (three key heads on `tensor` 2 are computed on both devices). A mesh axis that would split
nothing at all is an error of the config.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from grpo_jax.models.config import ModelConfig

ShardingRule = Callable[[str, tuple[int, ...]], NamedSharding | SingleDeviceSharding]
"""(name of an array such as "blocks.query.kernel", shape) -> where it lives."""

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"

MESH_AXES: dict[str | None, tuple[str, ...]] = {
    "rows": (DATA, FSDP),  # of a batch: sequences, or groups of them
    "width": (FSDP,),
    "heads": (TENSOR,),
    "key_heads": (TENSOR,),
    "mlp": (TENSOR,),
    "vocab": (TENSOR,),
    "layers": (),  # the scan over layers takes them one by one
    "rank": (),  # of LoRA: too small to split
    None: (),
}
"""Name of a dimension to the mesh axes it is split over."""

PROJECTIONS = {
    "query": ("width", "heads"),
    "key": ("width", "key_heads"),
    "value": ("width", "key_heads"),
    "out": ("heads", "width"),
    "gate": ("width", "mlp"),
    "up": ("width", "mlp"),
    "down": ("mlp", "width"),
}
"""What a projection reads and what it writes."""

PARAMETERS: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", "width"),
    "head": ("width", "vocab"),
    **{f"{name}.kernel": ("layers", *ends) for name, ends in PROJECTIONS.items()},
    **{f"{name}.bias": ("layers", writes) for name, (_, writes) in PROJECTIONS.items()},
    **{f"{name}.adapter.a": ("layers", reads, "rank") for name, (reads, _) in PROJECTIONS.items()},
    **{f"{name}.adapter.b": ("layers", "rank", writes) for name, (_, writes) in PROJECTIONS.items()},
    "attention_norm": ("layers", None),  # norms are small, and every device of an axis needs them whole
    "mlp_norm": ("layers", None),
    "query_norm": ("layers", None),
    "key_norm": ("layers", None),
    "final_norm": (None,),
}
"""End of a parameter's name to the names of its dimensions."""


def dimensions_of(name: str) -> tuple[str | None, ...] | None:
    """Names of the dimensions of a parameter, or of whatever ends in its name as an optimizer's moments do."""
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in (3, 2, 1))
    return next((PARAMETERS[end] for end in ends if end in PARAMETERS), None)


def parameter_sharding(
    name: str, shape: tuple[int, ...], *, mesh: Mesh, config: ModelConfig
) -> NamedSharding:
    """Where a parameter (or a moment of one) lives; what is no parameter is whole on every device."""
    dimensions = dimensions_of(name)
    if dimensions is None or len(dimensions) != len(shape):
        return NamedSharding(mesh, PartitionSpec())
    units = {"heads": config.num_heads, "key_heads": config.num_kv_heads}
    sizes = [units.get(dimension, size) for dimension, size in zip(dimensions, shape, strict=True)]
    return NamedSharding(mesh, _spec(dimensions, sizes, mesh.shape))


def vocab_per_device(vocab_size: int, mesh: Mesh) -> int:
    """Columns of logits that a device has: all of them where tensor does not divide the vocabulary."""
    return NamedSharding(mesh, _spec(["vocab"], [vocab_size], mesh.shape)).shard_shape((vocab_size,))[0]


def constrain(x: jax.Array, *dimensions: str | None) -> jax.Array:
    """`x` with its first dimensions split as the table says, on the mesh whose context this is traced in.

    Outside such a context, and for a size that does not divide, it is `x`. An axis that shard_map has made manual
    is already split.
    """
    spec = _spec(dimensions, x.shape[: len(dimensions)], _free_axes())
    return x if not any(spec) else jax.lax.with_sharding_constraint(x, spec)


def whole(x: jax.Array) -> jax.Array:
    """`x`, all of it on every device of the axes that are not manual, on the mesh whose context this is traced in."""
    if all(size == 1 for size in _free_axes().values()):
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec())


def pick(table: jax.Array, index: jax.Array) -> jax.Array:
    """table[..., index], along a last dimension of the vocabulary: table is [..., V] and index [...].

    On a mesh that splits the vocabulary this is a masked sum, whose parts add up over devices. A gather there aborts
    XLA's partitioner if another axis is manual (jax 0.10), and else may bring the whole table to every device.
    """
    if _free_axes().get(TENSOR, 1) == 1:
        return jnp.take_along_axis(table, index[..., None], axis=-1)[..., 0]
    places = jax.lax.broadcasted_iota(index.dtype, table.shape, table.ndim - 1)
    return jnp.where(places == index[..., None], table, 0).sum(-1)


def lookup(table: jax.Array, ids: jax.Array) -> jax.Array:
    """table[ids], [..., D] of a table [V, D] that may be split both ways, with rows split as a batch's.

    Every device looks up the ids it holds in its own part, and the parts add up. It is written out, gradient
    included, for the reason given in `pick`; JAX cannot differentiate a shard_map inside another.
    """
    spec = _spec(PARAMETERS["embedding"], table.shape, _free_axes())
    if not any(spec):
        return constrain(jnp.take(table, ids, axis=0), "rows")
    vocab, width = (*spec, None)[:2]
    found = PartitionSpec(*[None] * ids.ndim, width)  # every row, of the columns held here
    first_id = PartitionSpec(vocab)
    axes = {vocab, width} - {None}

    def place(places, ids, size):
        here = ids - places[0]
        return jnp.where((here >= 0) & (here < size), here, size)

    def forward(table, places, ids):
        here = place(places, ids, table.shape[0])
        rows = jnp.take(table, here, axis=0, mode="fill", fill_value=0)
        return rows if vocab is None else jax.lax.psum(rows, vocab)

    def backward(cotangent, places, ids):
        here = place(places, ids, places.shape[0])
        zeros = jnp.zeros((places.shape[0], cotangent.shape[-1]), cotangent.dtype)
        return zeros.at[here].add(cotangent, mode="drop")

    @jax.custom_vjp
    def apply(table, places, ids):
        run = jax.shard_map(
            forward, in_specs=(spec, first_id, PartitionSpec()), out_specs=found, axis_names=axes
        )
        return run(table, places, ids)

    def pull(residuals, cotangent):
        run = jax.shard_map(
            backward, in_specs=(found, first_id, PartitionSpec()), out_specs=spec, axis_names=axes
        )
        return run(cotangent, *residuals), None, None

    apply.defvjp(lambda table, places, ids: (apply(table, places, ids), (places, ids)), pull)
    return constrain(apply(table, jnp.arange(table.shape[0], dtype=ids.dtype), ids), "rows")


def parts_of(split: PartitionSpec) -> int:
    """Into how many parts it splits a first dimension, on the mesh whose context this is traced in."""
    axes = _free_axes()
    names = split[0] if split else ()
    return math.prod(axes[name] for name in ((names,) if isinstance(names, str) else names or ()))


def where_rows_lie(function: Callable, split: PartitionSpec) -> Callable:
    """`function` run by every device on the rows it holds, `split` being how those of arguments and results are split.

    Nothing in it is left to the partitioner, which aborts on some gathers (see `pick`), so it costs no communication.
    What it computes cannot be differentiated, for the reason given in `lookup`.
    """
    axes = {name for name, size in _free_axes().items() if size > 1}
    if not axes:
        return function
    return jax.shard_map(function, in_specs=split, out_specs=split, axis_names=axes)


def take_rows(values: jax.Array, index: jax.Array, split: PartitionSpec) -> jax.Array:
    """values[index] among the rows that a device holds of both, and 0 where there is no such row; with its gradient."""
    held = values.shape[0] // parts_of(split)

    def forward(values, index):
        return jnp.take(values, index, axis=0, mode="fill", fill_value=0)

    def backward(cotangent, index):
        zeros = jnp.zeros_like(cotangent, shape=(held, *cotangent.shape[1:]))
        return zeros.at[index].add(cotangent, mode="drop")

    @jax.custom_vjp
    def apply(values, index):
        return where_rows_lie(forward, split)(values, index)

    def pull(index, cotangent):
        return where_rows_lie(backward, split)(cotangent, index), None

    apply.defvjp(lambda values, index: (apply(values, index), index), pull)
    return apply(values, index)


def _free_axes() -> dict[str, int]:
    """Sizes of the axes of the mesh whose context this is traced in, without those that are manual."""
    mesh = jax.sharding.get_abstract_mesh()
    return {name: size for name, size in mesh.shape.items() if name in mesh.auto_axes}


def _spec(dimensions: Sequence[str | None], sizes: Sequence[int], axes: Mapping[str, int]) -> PartitionSpec:
    """Axes of size 1 are left out: they split nothing, and manual ones are trouble on CPU."""
    parts = []
    for dimension, size in zip(dimensions, sizes, strict=True):
        part = []
        for axis in MESH_AXES[dimension]:
            if axes.get(axis, 1) > 1 and size % axes[axis] == 0:
                part.append(axis)
                size //= axes[axis]
        parts.append((tuple(part) if part[1:] else part[0]) if part else None)
    while parts and parts[-1] is None:  # as JAX writes it: two spellings would be two compilations
        parts.pop()
    return PartitionSpec(*parts)


def split_of(dimensions: Sequence[str | None], sizes: Sequence[int]) -> PartitionSpec:
    """How the table splits dimensions of these sizes over the axes of the context's mesh that are not manual."""
    return _spec(dimensions, sizes, _free_axes())
