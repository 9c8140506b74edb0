"""Pretrained weights into a decoder, tensor by tensor, straight onto their devices.

Nothing holds the model twice: every device shard is allocated once; tensors are read in pieces of at most
`PIECE_BYTES`, copied to the device, and written into place and cast to the parameter's dtype there.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from grpo_jax.models import families
from grpo_jax.models.checkpoint_files import SafetensorsFolder
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.hub import locate
from grpo_jax.models.names import DERIVED, Slot, slots

PIECE_BYTES = 32 * 2**20
"""Largest piece of a tensor on the host at one time."""

Sharding = jax.sharding.Sharding
ShardingRule = Callable[[str, tuple[int, ...]], Sharding]
"""(parameter name such as "blocks.query.kernel", shape) -> where it lives."""


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
    """The architecture of the model at `source`: a folder, a .gguf file, or a hub id as org/name@commit."""
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
    first = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
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
    if shape != tensors.shapes["model.embed_tokens.weight"]:
        return False
    return all(
        np.array_equal(tensors.read(name, rows), tensors.read("model.embed_tokens.weight", rows))
        for rows in _pieces((slice(0, shape[0]), slice(0, shape[1])), itemsize=4)
    )


def _place(
    tensor_slots: list[Slot], shape: tuple[int, ...], dtype: jnp.dtype, sharding: Sharding, tensors: Tensors
) -> jax.Array:
    """One parameter, shard by shard; devices that hold the same part share each read."""
    holders: dict[tuple, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or (), shape, strict=True))
        holders.setdefault(bounds, []).append(device)
    shards = []
    for bounds, devices in holders.items():
        sizes = tuple(stop - start for start, stop in bounds)
        copies = [jax.device_put(jnp.zeros(sizes, dtype, device=device), device) for device in devices]
        for piece, offset in _shard_pieces(tensor_slots, bounds, tensors):
            copies = [
                _write(c, jax.device_put(piece, d), offset) for c, d in zip(copies, devices, strict=True)
            ]
        shards += copies
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _shard_pieces(
    tensor_slots: list[Slot], bounds: tuple[tuple[int, int], ...], tensors: Tensors
) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
    """The tensors of one shard in pieces, each with its offset within the shard."""
    for slot in tensor_slots:
        if slot.layer is not None and not bounds[0][0] <= slot.layer < bounds[0][1]:
            continue
        own = bounds if slot.layer is None else bounds[1:]
        stored = own[::-1] if slot.transposed else own
        for index in _pieces(tuple(slice(*b) for b in stored), itemsize=4):
            piece = tensors.read(slot.name, index)
            offset = tuple(part.start - start for part, (start, _) in zip(index, stored, strict=True))
            if slot.transposed:
                piece, offset = piece.T, offset[::-1]
            if slot.layer is not None:
                piece, offset = piece[None], (slot.layer - bounds[0][0], *offset)
            yield piece, offset


def _pieces(index: tuple[slice, ...], *, itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Cut an index along its first axis so that no piece is larger than PIECE_BYTES."""
    rows, *rest = index
    row_bytes = itemsize * math.prod(part.stop - part.start for part in rest)
    step = max(PIECE_BYTES // row_bytes, 1)
    for start in range(rows.start, rows.stop, step):
        yield (slice(start, min(start + step, rows.stop)), *rest)


@partial(jax.jit, donate_argnums=0)
def _write(shard: jax.Array, piece: jax.Array, offset: tuple[int, ...]) -> jax.Array:
    """Put a piece in place; the donated shard is updated where it lies."""
    return jax.lax.dynamic_update_slice(shard, piece.astype(shard.dtype), offset)
