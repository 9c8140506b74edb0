"""Systems that take turns: each in a warm process of its own, so that a busy machine slows all of them alike.

A worker script answers one JSON line per JSON line. What is compared are neighbouring runs, as ratios with their
spread.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any


class Worker:
    """A warm process running `script system` under `python`."""

    def __init__(
        self, script: Path, system: str, *, python: str, environment: Mapping[str, str] | None = None
    ):
        self.system = system
        self._process = subprocess.Popen(
            [python, str(script), system],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", **(environment or {})},
        )

    def ask(self, **request: Any) -> Any:
        """The worker's answer to `request`."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("answer "):  # libraries print to stdout too
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"{self.system} ended with status {self._process.wait()} at {request}")

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def answer(lines, respond) -> None:
    """The other side: `respond(**request)` for every line."""
    for line in lines:
        print("answer " + json.dumps(respond(**json.loads(line))), flush=True)


def alternate(workers: Sequence[Worker], *, rounds: int, **request: Any) -> dict[str, list[float]]:
    """Answers of every worker, ABAB…, `rounds` each."""
    answers = {worker.system: [] for worker in workers}
    for _ in range(rounds):
        for worker in workers:
            answers[worker.system].append(worker.ask(**request))
    return answers


def spread(values: Sequence[float], *, digits: int = 3) -> str:
    """Median, with the range in brackets."""
    return f"{statistics.median(values):.{digits}g} ({min(values):.{digits}g}–{max(values):.{digits}g})"


def ratios(others: Sequence[float], ours: Sequence[float]) -> list[float]:
    """How many times as long as ours each neighbouring run took."""
    return [other / own for other, own in zip(others, ours, strict=True)]


def machine(command: str, load: float) -> str:
    """What ran where: the line above a table."""
    names = [
        line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return (
        f"Machine:{names[0]}, {len(names)} cores; 1-minute load {load:.1f} before, {os.getloadavg()[0]:.1f} after. "
        f"{date.today()}; `{command}`."
    )


def write_section(file: Path, name: str, text: str) -> None:
    """Replaces what is between the marks of section `name`."""
    start, end = f"<!-- {name}: start -->", f"<!-- {name}: end -->"
    before, _, rest = file.read_text().partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{file} has no marks {start} … {end}")
    file.write_text(f"{before}{start}\n{text}\n{end}{after}")
