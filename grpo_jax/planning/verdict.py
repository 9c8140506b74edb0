"""Whether a program fits: what a compilation says, measured against the device's memory.

Anything unexpected is "unknown": only a compiler that finished and told its memory can say that a program fits.
"""

import re
from typing import Literal, NamedTuple

from grpo_jax import units
from grpo_jax.planning.compiling import UNITS, Compilation
from grpo_jax.planning.targets import Target
from grpo_jax.training.fitting import UNLOGGED

Answer = Literal["fits", "does not fit", "unknown"]

TEMPORARIES = "temporaries alone"
QUICK_SHARE = 0.80
"""Of the capacity that the quick level may fill: at full optimisation programs took 8 and 15 % more."""
GPU_SHARE = 0.75
"""Of a GPU's memory that JAX takes at its start, unless told otherwise."""


class Verdict(NamedTuple):
    """The answer, and what it rests on. Bytes are per device."""

    answer: Answer
    reason: str
    needed: int | None = None
    available: int | None = None

    @property
    def headroom(self) -> int | None:
        """Bytes left; negative where they are missing."""
        return None if self.needed is None or self.available is None else self.available - self.needed


def judge(compilation: Compilation, target: Target, *, resident: int) -> Verdict:
    """The verdict on one program; `resident` bytes of other state lie beside its arguments."""
    available = round(target.capacity * (GPU_SHARE if target.chip.platform == "cuda" else 1))
    if compilation.error:
        return _of_error(compilation, available, resident)
    needed = needed_by(compilation, target)
    if needed is None:
        return Verdict(
            "unknown", "the compiler did not say how much memory the program takes", None, available
        )
    needed += resident
    if needed > available:
        return Verdict("does not fit", f"{units.size(needed - available)} too much", needed, available)
    if not compilation.exact and target.chip.platform == "tpu" and needed > QUICK_SHARE * available:
        reason = f"within {1 - QUICK_SHARE:.0%} of the limit at the quick level: --exact says"
        return Verdict("unknown", reason, needed, available)
    tight = "; little is left" if needed > 0.95 * available else ""
    return Verdict("fits", f"{units.size(available - needed)} free{tight}", needed, available)


def needed_by(compilation: Compilation, target: Target) -> int | None:
    """Bytes that the program needs, its arguments included.

    On TPU the compiler's own total; `peak_memory` leaves out what the runtime reserves, and the sum of arguments and
    temporaries counts twice what is never alive together. Elsewhere that sum is what is allocated.
    """
    memory = compilation.memory
    if target.chip.platform == "tpu":
        if compilation.total is not None:
            return compilation.total
        return memory["peak"] + UNLOGGED if memory and memory.get("peak") else None
    if not memory or not memory["argument"]:
        return None
    return memory["argument"] + memory["output"] - memory["alias"] + memory["temp"]


def _of_error(compilation: Compilation, available: int, resident: int) -> Verdict:
    if not compilation.timed_out and "RESOURCE_EXHAUSTED" in compilation.error:
        needed, part = _exhausted(compilation.error)
        if needed is not None and needed + resident > available:
            return Verdict(
                "does not fit",
                f"the compiler needs {units.size(needed)} for {part}",
                needed + resident,
                available,
            )
        return Verdict("unknown", f"out of memory, in words not seen before: {compilation.error[:300]}")
    return Verdict("unknown", compilation.error[:300], None, available)


def _exhausted(error: str) -> tuple[int | None, str]:
    """Bytes that the compiler asked for when it gave up, and what for: the words are libtpu's."""
    number = r"([\d.]+)([KMGT])"
    if found := re.search(rf"total memory required for HLO temporaries \({number}\)", error):
        return round(float(found[1]) * UNITS[found[2]]), TEMPORARIES
    if found := re.search(rf"Used {number} of {number} hbm", error):
        return round(float(found[1]) * UNITS[found[2]]), "the whole program"
    return None, ""


def overall(verdicts: list[Verdict]) -> Answer:
    """All programs together: one that does not fit decides, then one that is unknown."""
    answers = {verdict.answer for verdict in verdicts}
    for answer in ("does not fit", "unknown"):
        if answer in answers:
            return answer
    return "fits" if answers else "unknown"
