"""The chips that can be planned for, and what a name such as v5p:2x2x2 means."""

import math
import os
import re
from dataclasses import dataclass
from typing import Literal

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One accelerator as its maker describes it. A device is what JAX lists: a chip, or one of a chip's two cores."""

    platform: Literal["tpu", "cuda", "cpu"]
    hbm_gib: float
    """Memory per device that a program may use."""
    peak_tflops: float
    """Dense bfloat16 matmuls per device."""
    hbm_gbps: float
    """GB/s between memory and compute, per device."""
    link_gbps: float
    """GB/s that a device sends along one axis of its interconnect, both directions together."""
    cores: int = 1
    """Devices per chip."""


# HBM is what libtpu reports as capacity (v4 and 7x: the data sheet's, halved per core). Bandwidths and peaks are of Google's
# system-architecture pages and of NVIDIA's data sheets; a TPU ring uses both directions of one torus axis.
CHIPS = {
    "v4": Chip("tpu", 15.75, 137.5, 614, 45, cores=2),
    "v5e": Chip("tpu", 15.75, 197, 819, 90),
    "v5p": Chip("tpu", 95.74, 459, 2765, 180),
    "v6e": Chip("tpu", 31.25, 918, 1640, 180),
    "tpu7x": Chip("tpu", 94.75, 1153, 3690, 180, cores=2),
    "h100": Chip("cuda", 79.1, 989, 3350, 450),
    "h200": Chip("cuda", 139.7, 989, 4800, 450),
}

CPU = Chip("cpu", 0.0, 0.05, 10, 10)
"""Simulated devices, to try a plan without libtpu: its memory is a share of the machine's, its speeds mean nothing."""


@dataclass(frozen=True)
class Target:
    """A slice of chips."""

    name: str
    chip: Chip
    shape: tuple[int, ...]
    """Chips along each axis of the interconnect."""

    @property
    def devices(self) -> int:
        """What JAX will list."""
        return math.prod(self.shape) * self.chip.cores

    @property
    def capacity(self) -> float:
        """Bytes per device."""
        if self.chip.platform == "cpu":
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / self.devices
        return self.chip.hbm_gib * GIB


def target_of(name: str) -> Target:
    """The slice that `name` means: v5p:2x2x2 is 8 chips, h100:8 one host of 8, cpu:4 four simulated devices.

    Raises:
        ValueError: names what came and what was expected.
    """
    kind, _, shape = name.lower().partition(":")
    if kind not in CHIPS and kind != "cpu":
        raise ValueError(
            f"--topology: got {name!r}, expected CHIP:SHAPE with a chip of {', '.join(CHIPS)} or cpu, e.g. v5p:2x2x2"
        )
    chip = CHIPS.get(kind, CPU)
    axes = (3,) if kind in ("v4", "v5p", "tpu7x") else (2,) if chip.platform == "tpu" else (1, 2, 3)
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape) or shape.count("x") + 1 not in axes:
        example = {3: "2x2x2", 2: "2x4", 1: "8"}[axes[0]]
        raise ValueError(
            f"--topology: got {name!r}, expected the chips along each axis, e.g. {kind}:{example}"
        )
    return Target(f"{kind}:{shape}", chip, tuple(map(int, shape.split("x"))))
