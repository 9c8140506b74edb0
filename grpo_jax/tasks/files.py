"""Problems from JSON lines, plain or gzipped, and Parquet. A bad line is an error that says where it is."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from grpo_jax.tasks.rows import Mapper, Row
from grpo_jax.tasks.splitting import TaskSplit, distinct, refuse_overlap, shorten, split
from grpo_jax.types import Problem


def from_files(
    *, path: str, mapper: Mapper, held_out_path: str | None = None, held_out_fraction: float = 0.1
) -> TaskSplit:
    """Problems of a file, held out by hash or taken from a second file."""
    problems = read(path, mapper, "data.path")
    if held_out_path is None:
        return split(problems, held_out_fraction)
    held_out = read(held_out_path, mapper, "data.held_out_path")
    refuse_overlap(problems, held_out)
    return TaskSplit(train=problems, held_out=held_out)


def read(path: str, mapper: Mapper, field: str) -> list[Problem]:
    """The distinct problems of one file."""
    file = Path(path)
    if not path or not file.is_file():
        raise ValueError(f"{field}: there is no file {path!r}.")
    problems = distinct(mapper.problems(rows(file, field)))
    if not problems:
        raise ValueError(f"{field}: {path} holds no problems.")
    return problems


def rows(file: Path, field: str) -> Iterator[tuple[str, Row]]:
    """(location, row) of each row of the file."""
    for suffix, reader in READERS.items():
        if file.name.endswith(suffix):
            return reader(file)
    raise ValueError(f"{field}: {file} has none of the suffixes {', '.join(READERS)}.")


def _json_lines(file: Path) -> Iterator[tuple[str, Row]]:
    opener = gzip.open if file.suffix == ".gz" else open
    number = 0
    # In bytes, because text mode would also end a line at characters that JSON allows inside a string.
    with opener(file, "rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{file}:{number}", _row(f"{file}:{number}", line)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{file}:{number + 1}: cannot be read: {error}") from None


def _row(location: str, line: bytes) -> Row:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{location}: not a line of JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{location}: not a line of JSON that can be read: nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"{location}: expected a JSON object, found {shorten(repr(row))}")
    return row


def _parquet(file: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a Parquet file that can be read: {error}") from None
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{file}:{number}", row


READERS = {".jsonl": _json_lines, ".jsonl.gz": _json_lines, ".parquet": _parquet}
