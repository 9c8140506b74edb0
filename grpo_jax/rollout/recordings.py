"""Rollouts on disk, one row per completion: a JSONL file to read, or a folder of Parquet files to analyse.

Both give back every number bit for bit: a float32 survives being written as a double. A call that is recorded
again, as by a run that resumes before it, takes the place of the one recorded first.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

Row = dict[str, Any]


COLUMNS = ("call", "row", "group", "stop_reason", "prompt_ids")
PER_TOKEN = ("completion_ids", "sampler_log_probs", "sampler_full_log_probs")
"""Besides, `sampled` is there where an environment answered."""


class Recording:
    """The calls on disk, by name. Those of a folder are read when they are asked for, those of a file all at once.

    Raises:
        ValueError: something in there is not a recorded completion; says where.
    """

    def __init__(self, path: Path):
        self._calls: dict[str, list[Row]] = {}
        self._parts: dict[str, Path] = {}
        self.sizes: dict[str, int] = {}
        """Completions of every call."""
        if path.is_dir():
            self._parts = {part.stem: part for part in sorted(path.glob("*.parquet"))}
            self.sizes = {name: _count(part) for name, part in self._parts.items()}
        else:
            self._calls = _calls(_parquet_rows(path) if kind(path) == "parquet" else _json_rows(path))
            self.sizes = {name: len(rows) for name, rows in self._calls.items()}

    def rows(self, name: str) -> list[Row]:
        """The completions of a call that is there."""
        if name in self._calls:
            return self._calls[name]
        calls = _calls(_parquet_rows(self._parts[name]))
        if name not in calls:
            held = ", ".join(calls) or "none"
            raise ValueError(f"{self._parts[name]}: expected the call it is named after, and it holds {held}")
        return calls[name]


def append(path: Path, rows: Sequence[Row]) -> None:
    """Adds the rows of one call, whose name is their `call`."""
    if kind(path) == "parquet":
        write(path, rows)
        return
    with path.open("a+b") as file:
        _drop_half_line(file)
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)


def _drop_half_line(file: BinaryIO) -> None:
    """Takes off what a kill has left of a line, which the next one would otherwise go on."""
    if not file.tell():
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def write(folder: Path, rows: Sequence[Row]) -> None:
    """The rows of one call in a file of their own, moved into place whole, so that a kill leaves no half of one."""
    import pyarrow as pa
    import pyarrow.parquet

    ids, numbers = pa.list_(pa.int32()), pa.list_(pa.float32())
    schema = {
        "call": pa.string(),
        "row": pa.int32(),
        "group": pa.int32(),
        "stop_reason": pa.string(),
        "prompt_ids": ids,
        "completion_ids": ids,
        "sampler_log_probs": numbers,
        "sampler_full_log_probs": numbers,
        "sampled": pa.list_(pa.bool_()),
    }
    kept = pa.schema({name: column for name, column in schema.items() if name in rows[0]})
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{rows[0]['call']}.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows), schema=kept), part.with_suffix(".tmp"))
    os.replace(part.with_suffix(".tmp"), part)


def kind(path: Path) -> str:
    """How a path is recorded to, by its suffix."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{path} ends in {path.suffix!r}; expected .jsonl or .parquet (a folder of files)")
    return path.suffix[1:]


def _calls(located: Iterable[tuple[str, Row]]) -> dict[str, list[Row]]:
    calls: dict[str, list[Row]] = {}
    for place, row in located:
        missing = [name for name in (*COLUMNS, *PER_TOKEN) if not isinstance(row, dict) or name not in row]
        if missing:
            raise ValueError(f"{place}: not a recorded completion (no {missing[0]})")
        if row["row"] == 0:
            calls[row["call"]] = []
        if row["row"] != len(calls.get(row["call"], [])):
            raise ValueError(f"{place}: row {row['row']} of {row['call']} does not follow the one before")
        calls[row["call"]].append(row)
    return calls


def _json_rows(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                yield f"{path}, line {number}", json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not a recorded completion ({error})") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, partitioning=None)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a recording ({error})") from None
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{path}, row {number}", row


def _count(part: Path) -> int:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_metadata(part).num_rows
    except (OSError, ValueError) as error:
        raise ValueError(f"{part}: not a recording ({error})") from None
