"""The judged completions of one suite, in a folder of their own, written as they are judged.

settings.json       what they depend on; a folder made with other settings is refused
completions.jsonl   one row per completion
"""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from grpo_jax.training.records import read_rows

Row = Mapping[str, Any]


class Ledger:
    """A file of rows that grows until every sample of every problem is in it, whatever interrupts it."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, made_by: Mapping[str, Any]):
        """`settings` decide the results; `made_by` is kept for people and may differ when the work goes on.

        Raises:
            ValueError: the folder holds results of other settings (names the one that differs), or is being written to.
        """
        self.folder, self.settings = folder, settings
        about = folder / "settings.json"
        if about.exists():
            refuse_other(folder, read_settings(folder), settings)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = _only_writer(folder)
        if not about.exists():
            text = json.dumps({"settings": settings, "made_by": made_by}, indent=2)
            _replace(about, text + "\n")
        path = folder / "completions.jsonl"
        rows = read_rows(path) if path.exists() else []
        # What was being written when a kill came is dropped; the rest is moved into place whole.
        _replace(path, "".join(map(_line, rows)))
        self._rows = {(row["problem"], row["sample"]): row for row in rows}
        self._file = path.open("a", encoding="utf-8")

    def has(self, problems: Iterable[int], samples: int) -> bool:
        """Whether all samples of these problems are judged."""
        return all((problem, sample) in self._rows for problem in problems for sample in range(samples))

    def write(self, rows: Iterable[Row]) -> None:
        """Appends the rows that are not there yet, on disk when this returns."""
        fresh = [row for row in rows if (row["problem"], row["sample"]) not in self._rows]
        self._rows |= {(row["problem"], row["sample"]): row for row in fresh}
        self._file.write("".join(map(_line, fresh)))
        self._file.flush()

    def __len__(self) -> int:
        return len(self._rows)

    def mean(self, name: str) -> float:
        """The mean of a number over the rows so far."""
        return sum(row[name] for row in self._rows.values()) / len(self._rows)

    @property
    def rows(self) -> list[Row]:
        """Every row, by problem and sample."""
        return [self._rows[place] for place in sorted(self._rows)]

    def close(self) -> None:
        """Closes the file, and lets others write."""
        self._file.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of the results in a folder."""
    try:
        return json.loads((folder / "settings.json").read_text(encoding="utf-8"))["settings"]
    except (OSError, KeyError, json.JSONDecodeError):
        raise ValueError(f"{folder} holds no results of an evaluation (no readable settings.json)") from None


def refuse_other(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises if results of settings `old` cannot be gone on with under `new`."""
    for name, value in new.items():
        if old.get(name) != value:
            raise ValueError(
                f"out: {folder} holds results with {name} {old.get(name)!r}, and it is {value!r} now; "
                "results of other settings need another folder"
            )


def _only_writer(folder: Path) -> int:
    """A descriptor that keeps other evaluations out until it is closed, or the process ends in whatever way."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise ValueError(f"out: another evaluation is writing to {folder}") from None
    return descriptor


def _line(row: Row) -> str:
    return json.dumps(row, sort_keys=True, allow_nan=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
