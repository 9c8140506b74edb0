"""Pretrained weights into a decoder, tensor by tensor, straight onto their devices.

Nothing holds the model twice: every device shard is allocated once; tensors are read in pieces of at most
`PIECE_BYTES`, copied to the device, and written into place and cast to the parameter's dtype there.

Measured with SmolLM2-135M (538 MB in float32, largest tensor 113 MB), cold, on a busy 2-core machine: from safetensors the
process peaks 108 MB above the model in 3 to 7 seconds, on one device and on a mesh of eight; from GGUF 330 to 540 MB in
20 to 30 seconds, most of it the file's vocabulary as Python objects. By its shapes Qwen2.5-7B takes 30.5 GB in float32
(15.2 in bfloat16), an eighth of that per device on a mesh of eight; its largest tensor is 2.2 GB and is never on the host
at once.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from grpo_jax.models import families
from grpo_jax.models.axes import ShardingRule
from grpo_jax.models.checkpoint_files import SafetensorsFolder
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hub import locate, resolve
from grpo_jax.models.names import DERIVED, TENSORS, Slot, slots

PIECE_BYTES = 8 * 2**20
"""Largest piece of a tensor on the host at one time."""

_EMBEDDING = TENSORS["embedding"]

Sharding = NamedSharding | SingleDeviceSharding


class Tensors(Protocol):
    """A checkpoint under Transformers' names and layout, whatever the file format."""

    shapes: Mapping[str, tuple[int, ...]]

    def file_of(self, name: str) -> str:
        """File that holds (or should hold) the tensor, for error messages."""

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Part of one tensor."""


def read_config(
    source: str,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    param_dtype: Literal["float32", "bfloat16"] = "float32",
) -> ModelConfig:
    """The architecture of the model at `source`: a folder, a .gguf file, package:NAME, or org/name@commit."""
    source = resolve(source)
    if source.endswith(".gguf"):
        from grpo_jax.models import gguf

        fields = gguf.GgufFile(source).transformers_config()
    else:
        file = locate(source, weights=False) / "config.json"
        if not file.exists():
            raise ValueError(f"{file} does not exist; expected a Transformers model folder")
        fields = json.loads(file.read_text())
    return families.from_transformers(fields, dtype=dtype, param_dtype=param_dtype)


def load_decoder(
    source: str, *, config: ModelConfig | None = None, sharding: ShardingRule | None = None
) -> Decoder:
    """The model at `source`, its parameters where `sharding` wants them (default: the first device)."""
    source = resolve(source)
    config = config or read_config(source)
    if source.endswith(".gguf"):
        from grpo_jax.models import gguf

        tensors: Tensors = gguf.GgufFile(source)
    else:
        tensors = SafetensorsFolder(locate(source, weights=True))
    return fill(config, tensors, sharding=sharding)


def fill(config: ModelConfig, tensors: Tensors, *, sharding: ShardingRule | None = None) -> Decoder:
    """A decoder of this architecture with the parameters of a checkpoint, every tensor accounted for."""
    structure, abstract = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    parameters = {".".join(path): variable for path, variable in nnx.to_flat_state(abstract)}
    check(config, {name: variable.shape for name, variable in parameters.items()}, tensors)
    first = SingleDeviceSharding(jax.local_devices()[0])
    filled = []
    for path, variable in nnx.to_flat_state(abstract):
        name = ".".join(path)
        where = sharding(name, variable.shape) if sharding else first
        array = _place(list(slots(name, config)), variable.shape, variable.dtype, where, tensors)
        filled.append((path, variable.replace(array)))
    return nnx.merge(structure, nnx.from_flat_state(filled))


def check(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], tensors: Tensors) -> None:
    """Raise on a missing, misshapen or extra tensor before anything is read."""
    expected = set()
    for parameter, shape in shapes.items():
        for slot in slots(parameter, config):
            expected.add(slot.name)
            found = tensors.shapes.get(slot.name)
            if found is None:
                raise ValueError(f"tensor {slot.name} is missing from {tensors.file_of(slot.name)}")
            if found != _stored_shape(slot, shape):
                raise ValueError(
                    f"tensor {slot.name} in {tensors.file_of(slot.name)} has shape {list(found)};"
                    f" expected {list(_stored_shape(slot, shape))}"
                )
    for name in tensors.shapes.keys() - expected:
        if not name.endswith(DERIVED) and not _repeats_embedding(name, config, tensors):
            raise ValueError(
                f"tensor {name} in {tensors.file_of(name)} belongs to no parameter of this model"
            )


def _stored_shape(slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    shape = shape if slot.layer is None else shape[1:]
    return shape[::-1] if slot.transposed else shape


def _repeats_embedding(name: str, config: ModelConfig, tensors: Tensors) -> bool:
    """Whether this is the head of a tied model, stored a second time: harmless if it is the same."""
    if name != "lm_head.weight" or not config.tied_embeddings:
        return False
    shape = tensors.shapes[name]
    if shape != tensors.shapes[_EMBEDDING]:
        return False
    blocks = _pieces(shape, Slot(name, "embedding", layer=None, transposed=False))
    return all(
        np.array_equal(*(tensors.read(n, (slice(r, r + rows), slice(None))) for n in (name, _EMBEDDING)))
        for (r, _), (rows, _) in blocks
    )


def _place(
    tensor_slots: list[Slot], shape: tuple[int, ...], dtype: jnp.dtype, sharding: Sharding, tensors: Tensors
) -> jax.Array:
    """One parameter, piece by piece on all devices at once; devices with the same part share each read."""
    holders: dict[tuple[int, ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        start = tuple(part.indices(size)[0] for part, size in zip(index, shape, strict=True))
        holders.setdefault(start, []).append(device)
    shard_shape = sharding.shard_shape(shape)
    array = jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=sharding)(shape, dtype)
    write = _writer(sharding)
    for offset, size in _pieces(shard_shape, tensor_slots[0]):
        parts = []
        for start, devices in holders.items():
            begin = tuple(a + b for a, b in zip(start, offset, strict=True))
            part = _read(tensor_slots, begin, size, tensors)
            parts += [jax.device_put(part, device) for device in devices]
        whole = tuple(n * (a // b) for n, a, b in zip(size, shape, shard_shape, strict=True))
        array = write(array, jax.make_array_from_single_device_arrays(whole, sharding, parts), offset)
    return array


def _read(
    tensor_slots: list[Slot], start: tuple[int, ...], size: tuple[int, ...], tensors: Tensors
) -> np.ndarray:
    """A block of a parameter, which lies within one tensor: blocks of stacked parameters have one layer."""
    slot = tensor_slots[0] if tensor_slots[0].layer is None else tensor_slots[start[0]]
    index = tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
    stored = index if slot.layer is None else index[1:]
    block = tensors.read(slot.name, stored[::-1] if slot.transposed else stored)
    return (block.T if slot.transposed else block).reshape(size)


def _pieces(shard_shape: tuple[int, ...], slot: Slot) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Offset and size of blocks of at most PIECE_BYTES: of one layer, some rows of the tensor as stored."""
    lead = () if slot.layer is None else (1,)
    own = shard_shape[len(lead) :]
    axis = len(lead) + (len(own) - 1 if slot.transposed else 0)
    rows = shard_shape[axis]
    step = max(PIECE_BYTES * rows // (4 * math.prod(own)), 1)
    for layer in range(shard_shape[0]) if lead else (0,):
        for row in range(0, rows, step):
            offset, size = [0] * len(shard_shape), [*lead, *own]
            offset[axis], size[axis] = row, min(step, rows - row)
            if lead:
                offset[0] = layer
            yield tuple(offset), tuple(size)


@cache
def _writer(sharding: Sharding) -> Callable[[jax.Array, jax.Array, tuple[int, ...]], jax.Array]:
    """Put a block of every shard in place; the donated array is updated where it lies."""

    def write(array: jax.Array, block: jax.Array, offset: tuple[int, ...]) -> jax.Array:
        return jax.lax.dynamic_update_slice(array, block.astype(array.dtype), offset)

    if not sharding.is_fully_replicated:
        # Mesh axes of size 1 split nothing, and manual ones are trouble on CPU.
        parts = [(part,) if isinstance(part, str) else part or () for part in sharding.spec]
        parts = [tuple(name for name in part if sharding.mesh.shape[name] > 1) for part in parts]
        spec = PartitionSpec(*parts)
        write = jax.shard_map(
            write,
            mesh=sharding.mesh,
            in_specs=(spec, spec, PartitionSpec()),
            out_specs=spec,
            axis_names=set().union(*parts),
        )
    return jax.jit(write, donate_argnums=0)
