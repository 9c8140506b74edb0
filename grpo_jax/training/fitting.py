"""`update.micro_batch = "auto"`: the largest micro-batch whose update fits, by what the compiler says it needs.

Nothing is run and nothing crashes. The update is compiled at a few sizes; halving finds the largest that fits.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from grpo_jax import amounts, units
from grpo_jax.config import Config
from grpo_jax.models.config import ModelConfig
from grpo_jax.training import hosts, sharding
from grpo_jax.training.shapes import Program, bytes_per_device, shapes_of

SHARE = 0.9
"""Of a device's memory that is filled where the config names no budget: compilers do not see fragmentation."""
UNLOGGED = round(1.4 * 2**30)
"""What a TPU needs above `peak_memory`: 0.26 to 1.35 GiB were seen."""


def with_micro_batch(config: Config, architecture: ModelConfig, *, mesh: Mesh) -> Config:
    """`config` with a number for an automatic micro-batch.

    Raises:
        ValueError: not even the smallest fits.
    """
    if config.update.micro_batch != amounts.AUTO:
        return config
    budget = budget_of(config, mesh)
    sizes = candidates(config, shards=sharding.row_shards(mesh))
    found = largest(sizes, lambda size: needed(_sized(config, size), architecture, mesh=mesh) <= budget)
    if found is None:
        raise ValueError(
            f"update.micro_batch: got 'auto', but not even {sizes[0]} sequences over all devices fit into "
            f"{units.size(budget)} per device; more devices on mesh.fsdp, or model.remat full, need less"
        )
    return _sized(config, found)


def candidates(config: Config, *, shards: int) -> list[int]:
    """Micro-batches that cut an optimizer step into 1, 2, 4, … parts, smallest first.

    Where the whole step is whole groups on every device, so are its parts, down to one group; below that the group layout
    has none.
    """
    whole, group = amounts.rows_per_device(_sized(config, 0), shards=shards), config.rollout.group_size
    if whole % group or config.update.layout in ("plain", "packed"):
        rows = halved(whole)
    else:
        rows = {groups * group for groups in halved(whole // group)}
        rows |= halved(group) if config.update.layout == "auto" else set()
    return [size * shards for size in sorted(rows)]


def halved(whole: int) -> set[int]:
    """`whole`, its half, quarter and so on, rounded up."""
    return {-(-whole >> halvings) for halvings in range(whole.bit_length() + 1)}


def largest(sizes: list[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of the ascending `sizes` that fits, if what fits at one size fits at all smaller ones."""
    low, high = -1, len(sizes)
    while high - low > 1:
        middle = (low + high + 1) // 2 if low < 0 else (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low] if low >= 0 else None


def needed(config: Config, architecture: ModelConfig, *, mesh: Mesh) -> float:
    """Bytes per device that the update needs, and what lies beside it; infinity where the compiler gives up."""
    update = _update(config, architecture, mesh)
    beside = sum(bytes_per_device(tree) for tree in update.beside.values())
    try:
        memory = update.lower().compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return float("inf")
        raise
    return beside + program_bytes(memory, platform=mesh.devices.flat[0].platform)


def program_bytes(memory: Any, *, platform: str) -> int:
    """Bytes of a compiled program, arguments included, from its `memory_analysis()`."""
    peak = getattr(memory, "peak_memory_in_bytes", 0)
    if platform == "tpu" and peak:
        return peak + UNLOGGED
    sizes = {
        name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "alias", "temp")
    }
    return sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]


def budget_of(config: Config, mesh: Mesh) -> float:
    """Bytes per device that may be filled, the same on every host."""
    if config.update.memory_budget_gib:
        return config.update.memory_budget_gib * 2**30
    device = mesh.local_devices[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        limit = stats["bytes_limit"]
    elif device.platform == "cpu":
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / len(mesh.local_devices)
    else:
        raise ValueError(
            f"update.micro_batch: got 'auto', but {device.device_kind} does not say how much memory it has; "
            "update.memory_budget_gib says it"
        )
    return SHARE * min(hosts.gather(float(limit)))


def _update(config: Config, architecture: ModelConfig, mesh: Mesh) -> Program:
    platform = mesh.devices.flat[0].platform
    return shapes_of(config, architecture, mesh=mesh, platform=platform).programs["update"]


def _sized(config: Config, size: int) -> Config:
    return replace(config, update=replace(config.update, micro_batch=size))
