"""Runs a compilation in a process of its own, under a time limit, and reads what it says."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_jax import experiment, scratch, units
from grpo_jax.config import Config
from grpo_jax.planning.targets import GIB, Target

WORKER = "grpo_jax.planning.worker"
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


@dataclass(frozen=True)
class Compilation:
    """What compiling one program came to. Bytes are per device; None is what the compiler did not say."""

    program: str
    exact: bool
    seconds: float
    """Wall time of the process."""
    error: str = ""
    timed_out: bool = False
    memory: Mapping[str, int] | None = None
    """argument, output, alias, temp, generated_code, peak: as `compiled.memory_analysis()` counts."""
    total: int | None = None
    """What the TPU compiler checks against its capacity, from its log."""
    collectives: tuple[Mapping[str, Any], ...] | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    peak_rss: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def compile_program(
    config: Config, target: Target, program: str, *, exact: bool = False, time_limit: float = 600.0
) -> Compilation:
    """Compiles one of `shapes.NAMES` for `target`; whatever goes wrong is in the result."""
    with scratch.folder() as folder:
        (folder / "config.py").write_text(experiment.to_source(config))
        request = {
            "config": str(folder / "config.py"),
            "target": target.name,
            "platform": target.chip.platform,
            "program": program,
            "exact": exact,
            "answer": str(folder / "answer.json"),
            "plan": os.getpid(),
        }
        (folder / "request.json").write_text(json.dumps(request))
        start = time.monotonic()
        with (folder / "log").open("w") as log:
            try:
                status = subprocess.run(
                    [sys.executable, "-m", WORKER, str(folder / "request.json")],
                    env=environment(target, exact=exact),
                    stdout=log,
                    stderr=log,
                    timeout=time_limit,
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
        seconds = time.monotonic() - start
        text = (folder / "log").read_text(errors="replace")
        answer_file = folder / "answer.json"
        answer = json.loads(answer_file.read_text()) if answer_file.exists() else {}
    base = {"program": program, "exact": exact, "seconds": seconds}
    if status is None:
        return Compilation(**base, timed_out=True, error=f"not done after {units.seconds(time_limit)}")
    if not answer:
        return Compilation(
            **base, error=f"the compiler's process ended with status {status}: {last_words(text)}"
        )
    return read_answer(answer, text, base)


def read_answer(answer: Mapping[str, Any], log: str, base: Mapping[str, Any]) -> Compilation:
    """A worker's answer and log as a `Compilation`."""
    collectives = answer.get("collectives")
    return Compilation(
        **base,
        error=answer.get("error", ""),
        memory=answer.get("memory"),
        total=total_of(log),
        collectives=None if collectives is None else tuple(collectives),
        lower_seconds=answer.get("lower_seconds"),
        compile_seconds=answer.get("compile_seconds"),
        peak_rss=answer.get("peak_rss_bytes"),
        versions=answer.get("versions", {}),
    )


def last_words(log: str) -> str:
    """Why a process died: the check that failed, if it says so before its stack trace, else its last line."""
    lines = log.strip().splitlines() or ["it said nothing"]
    return next((line for line in lines if "Check failed" in line), lines[-1])


def total_of(log: str) -> int | None:
    """Bytes after the last "Total hbm usage >=" of a libtpu log: programs compiled on the way come first."""
    found = re.findall(r"Total hbm usage >= ([\d.]+)([KMGT]?)", log)
    return round(float(found[-1][0]) * UNITS[found[-1][1]]) if found else None


def environment(target: Target, *, exact: bool) -> dict[str, str]:
    """The worker's environment: JAX on the CPU, this process's import path, and the level of optimisation."""
    from grpo_jax.planning.worker import TPU_ENVIRONMENT

    changed = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path])),
        # A cached executable cannot be read without a device.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "JAX_OPTIMIZATION_LEVEL": "UNKNOWN" if exact else "O1",
    }
    if target.chip.platform == "tpu":
        changed |= TPU_ENVIRONMENT
    if target.chip.platform == "cpu":
        flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
        changed["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={target.devices}"
    return changed
