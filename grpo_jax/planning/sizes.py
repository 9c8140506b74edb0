"""Memory per device in closed form: what a run keeps, and the large things its update makes on the way.

State is exact: shapes and shardings say it. Temporaries are estimates of the largest ones, to say what dominates and what
to change where a compiler only says that memory ran out.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from grpo_jax import amounts
from grpo_jax.config import Config
from grpo_jax.models.axes import vocab_per_device
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.head import block_columns
from grpo_jax.training import flops, sharding
from grpo_jax.training.shapes import Program, Shapes, bytes_per_device

CHANGES = {
    "parameters": "raise mesh.fsdp or mesh.tensor, or take more chips",
    "moments": "raise mesh.fsdp or mesh.tensor, store the first moment in bfloat16 (optimizer.first_moment_dtype), "
    "or train adapters alone (model.lora_rank)",
    "reference": "keep it in host memory (update.offload_reference), raise mesh.fsdp, or set loss.kl_coef to 0",
    "gradients": "raise mesh.fsdp or mesh.tensor, or train adapters alone (model.lora_rank)",
    "saved activations": "lower update.micro_batch, or recompute more (model.remat)",
    "attention scores": "lower update.micro_batch, or raise mesh.tensor",
    "gathered weights": "raise mesh.tensor",
    "logits": "lower update.head_memory_mib, or raise mesh.tensor",
    "cache": "lower rollout.max_completion_length, or rollout.batch_size x rollout.group_size below the sampler's slots",
    "sampler's parameters": "set rollout.lag to 0",
    "sampler's weights": "raise mesh.tensor: the sampler does not split them over data and fsdp",
    "batch": "lower rollout.batch_size",
    "slots": "lower rollout.max_completion_length",
}
"""What makes each item smaller."""


class Item(NamedTuple):
    """One thing in memory."""

    name: str
    bytes: int

    @property
    def change(self) -> str:
        """What makes it smaller."""
        return CHANGES[self.name]


def items(parts: Mapping[str, object]) -> list[Item]:
    """Exact bytes per device of a program's parts; those that are absent are left out."""
    found = [Item(name, bytes_per_device(tree)) for name, tree in parts.items()]
    return [item for item in found if item.bytes]


def resident(program: Program) -> int:
    """Bytes per device of what is there besides the program's own arguments."""
    return sum(item.bytes for item in items(program.beside))


def temporaries(config: Config, shapes: Shapes, mesh: Mesh | AbstractMesh) -> list[Item]:
    """The large temporaries of the update."""
    model, rollout = shapes.architecture, config.rollout
    P, T, G = rollout.max_prompt_length, rollout.max_completion_length, rollout.group_size
    width, tensor = jnp.dtype(model.dtype).itemsize, mesh.shape[sharding.TENSOR]
    rows = amounts.rows_per_device(config, shards=sharding.row_shards(mesh))
    plain = shapes.built.layout != "group"
    tokens = rows * (P + T) if plain else rows // G * (P + G * T)
    scores = rows * model.num_heads // tensor * (P + T) * ((P + T) if plain else T)
    scores = scores if shapes.attention == "einsum" else 0  # kernels keep them on the chip
    gathered = sum(i * o for i, o in flops.projection_shapes(model).values()) * width // tensor
    part, fsdp = vocab_per_device(model.vocab_size, mesh), mesh.shape[sharding.FSDP]
    columns = block_columns(part, tokens=rows * T * fsdp, parts=model.vocab_size // part)
    if fsdp > 1:
        gathered += model.width * columns * 4  # a block of the head at a time, in float32
    kept = rows * T <= shapes.kept_logits
    logits = 4 * rows * T * ((part if kept else 0) + 2 * columns)  # a block, and what becomes of it
    return [
        Item(
            "gradients", 2 * bytes_per_device(shapes.state.params)
        ),  # summed so far, and a micro-batch's own
        Item("saved activations", tokens * saved_per_token(model, tensor) + kept_scores(model, scores)),
        Item("attention scores", 2 * scores * 4),
        Item("gathered weights", gathered),
        Item("logits", logits),
    ]


def saved_per_token(model: ModelConfig, tensor: int) -> int:
    """Bytes per token that wait for the backward pass, over all layers, without attention scores."""
    width = jnp.dtype(model.dtype).itemsize
    between_layers = model.width * width
    outputs = sum(o for _, o in flops.projection_shapes(model).values()) * width // tensor
    rest = 2 * model.width * (4 + width) + outputs  # norms, and what the projections' outputs become
    kept = {"full": 0, "dots": outputs, "none": outputs + rest}[model.remat]
    return model.num_layers * (between_layers + kept)


def kept_scores(model: ModelConfig, scores: int) -> int:
    """Bytes of attention scores that wait for the backward pass."""
    return model.num_layers * scores * (4 + jnp.dtype(model.dtype).itemsize) if model.remat == "none" else 0


def largest(found: Iterable[Item]) -> Item:
    """The item that takes most."""
    return max(found, key=lambda item: item.bytes)
