"""The rows a run leaves on disk for people and for `report`: JSON lines that survive a kill and a resume.

A run folder holds `metrics.jsonl` (one row per step), `samples.jsonl` (a few completions per step) and
`evaluations/` (every judged completion of an evaluation). Write a step's rows before its checkpoint: then a
restored step always has its rows, and a resumed run drops what came after it, so that nothing is recorded
twice.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from grpo_jax.types import STOPPED, Message

STAGES = ("warm_start", "policy")
"""The stages of a run, in order. Each counts its steps from 1; step 0 is what was measured before them."""


class Position(NamedTuple):
    """A moment of a run. A resumed run keeps what was recorded up to it."""

    stage: str
    step: int

    def order(self) -> tuple[int, int]:
        if self.stage not in STAGES:
            raise ValueError(f"stage {self.stage!r} is unknown; expected one of {', '.join(STAGES)}")
        return STAGES.index(self.stage), self.step


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file. An unfinished last line (the run was killed while writing it) is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.extend([json.loads(line)] if line.strip() else [])
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not JSON ({error.msg})") from None
    return rows


class Closing:
    """A writer that closes itself at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RowWriter(Closing):
    """A JSONL file that grows by one row at a time, each flushed, so that a kill loses nothing."""

    def __init__(self, path: Path, *, resumed: Position | None = None):
        kept = read_rows(path) if resumed and path.exists() else []
        kept = [row for row in kept if Position(row["stage"], row["step"]).order() <= resumed.order()]
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside and moved into place, so that a kill now cannot lose the rows that are kept.
        replacement = path.with_suffix(".tmp")
        replacement.write_text("".join(map(_line, kept)), encoding="utf-8")
        os.replace(replacement, path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends a row, which holds its own `stage` and `step`."""
        Position(row["stage"], row["step"]).order()
        self._file.write(_line(row))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def finite(value: Any) -> float | None:
    """The value as a plain number; None, which JSON writes as null, where it is NaN or infinite."""
    number = float(value)
    return number if math.isfinite(number) else None


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, allow_nan=False) + "\n"


class SampleWriter(Closing):
    """A few completions of every step, in `samples.jsonl`, for a person to read.

    Args:
        folder: the run folder.
        count: completions kept per step, evenly spaced over the batch so that they are not all of one group.
        resumed: as for `MetricWriter`.
    """

    def __init__(self, folder: Path | str, *, count: int = 4, resumed: Position | None = None):
        self._count = count
        self._rows = RowWriter(Path(folder) / "samples.jsonl", resumed=resumed)

    def write(
        self,
        *,
        step: int,
        stage: str,
        prompts: Sequence[str],
        completions: Sequence[str],
        rewards: Sequence[float],
        advantages: Sequence[float],
        stop_reasons: Sequence[int],
        verdicts: Sequence[Mapping[str, str]] | None = None,
        turns: Sequence[Sequence[Message] | None] | None = None,
    ) -> None:
        """Records some of a step's N completions; every argument but the position is [N].

        `completions` are the texts that were judged; `turns` the conversations they end, if an environment answered.
        """
        count = len(completions)
        for i in np.unique(np.linspace(0, count - 1, min(self._count, count)).astype(int)):
            self._rows.write(
                {
                    "step": step,
                    "stage": stage,
                    "row": int(i),
                    "prompt": prompts[i],
                    "completion": completions[i],
                    **({"turns": [turn._asdict() for turn in turns[i]]} if turns and turns[i] else {}),
                    "reward": finite(rewards[i]),
                    "advantage": finite(advantages[i]),
                    "stop_reason": "stopped" if stop_reasons[i] == STOPPED else "truncated",
                    **({"verdicts": dict(verdicts[i])} if verdicts and verdicts[i] else {}),
                }
            )

    def close(self) -> None:
        self._rows.close()


def save_evaluation(
    folder: Path | str, completions: Sequence[Mapping[str, Any]], *, step: int, stage: str
) -> Path:
    """Writes every judged completion of an evaluation (`Evaluation.completions`) into the run folder."""
    Position(stage, step).order()
    path = Path(folder) / "evaluations" / f"{stage}_{step:06d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(map(_line, completions)), encoding="utf-8")
    return path
