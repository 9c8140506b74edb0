"""Rollouts on disk, one row per completion: a JSONL file to read, or a folder of Parquet files to analyse.

Both give back every number bit for bit: a float32 survives being written as a double. A call that is recorded
again, as by a run that resumes before it, takes the place of the one recorded first.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def append(path: Path, rows: Sequence[Row]) -> None:
    """Adds the rows of one call, whose name is their `call`."""
    if kind(path) == "parquet":
        _write_part(path, rows)
        return
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read(path: Path) -> dict[str, list[Row]]:
    """The rows of every call.

    Raises:
        ValueError: something in there is not a recorded completion; says where.
    """
    calls: dict[str, list[Row]] = {}
    for place, row in _parquet_rows(path) if kind(path) == "parquet" else _json_rows(path):
        try:
            if row["row"] == 0:
                calls[row["call"]] = []
            calls[row["call"]].append(row)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{place}: not a recorded completion (no {error})") from None
    return calls


def kind(path: Path) -> str:
    """How a path is recorded to, by its suffix."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{path} ends in {path.suffix!r}; expected .jsonl or .parquet (a folder of files)")
    return path.suffix[1:]


def _json_rows(path: Path) -> Iterator[tuple[str, Row]]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                yield f"{path}, line {number}", json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not a recorded completion ({error})") from None


def _write_part(folder: Path, rows: Sequence[Row]) -> None:
    """A file per call, moved into place whole, so that a kill leaves no half of one."""
    import pyarrow as pa
    import pyarrow.parquet

    ids, numbers = pa.list_(pa.int32()), pa.list_(pa.float32())
    schema = pa.schema(
        {
            "call": pa.string(),
            "row": pa.int32(),
            "group": pa.int32(),
            "stop_reason": pa.string(),
            "prompt_ids": ids,
            "completion_ids": ids,
            "sampler_log_probs": numbers,
            "sampler_full_log_probs": numbers,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{rows[0]['call']}.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows), schema=schema), part.with_suffix(".tmp"))
    os.replace(part.with_suffix(".tmp"), part)


def _parquet_rows(path: Path) -> Iterable[tuple[str, Row]]:
    import pyarrow.parquet

    parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    for part in parts:
        try:
            table = pyarrow.parquet.read_table(part, partitioning=None)
        except (OSError, ValueError) as error:
            raise ValueError(f"{part}: not a recording ({error})") from None
        for number, row in enumerate(table.to_pylist(), start=1):
            yield f"{part}, row {number}", row
