"""Rows of files, each with its location: JSON lines, CSV, Parquet, Arrow; folders, patterns, and the hub."""

import csv
import glob
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from grpo_jax.tasks.rows import Row
from grpo_jax.tasks.splitting import shorten

HUB = "hf://datasets/"


def rows(path: str, field: str) -> Iterator[tuple[str, Row]]:
    """(location, row) of every row of the files a path means."""
    for file in files(path, field):
        yield from _reader(file, field)(file)


def files(path: str, field: str) -> list[Path]:
    """The files a path means: itself, those of a folder, those that match a pattern, or a download."""
    if path.startswith(HUB):
        return _matching(_download(path, field), path, field)
    if any(c in path for c in "*?["):
        return _matching(path, path, field)
    found = Path(path)
    if path and found.is_dir():
        return _of_folder(found, field)
    if not path or not found.is_file():
        raise ValueError(f"{field}: there is no file {path!r}.")
    return [found]


def _matching(pattern: str, path: str, field: str) -> list[Path]:
    found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file()]
    if not found:
        raise ValueError(f"{field}: no file matches {path!r}.")
    return found


def _of_folder(folder: Path, field: str) -> list[Path]:
    """The files of one split: those that `datasets` listed when it saved them, or all if they begin alike."""
    if (splits := folder / "dataset_dict.json").exists():
        names = json.loads(splits.read_text())["splits"]
        raise ValueError(
            f"{field}: {folder} holds the splits {', '.join(names)}; name one, as in {folder}/{names[0]}."
        )
    if (state := folder / "state.json").exists():
        return [folder / part["filename"] for part in json.loads(state.read_text())["_data_files"]]
    found = sorted(file for file in folder.rglob("*") if file.name.endswith(tuple(READERS)))
    if not found:
        raise ValueError(f"{field}: {folder} holds no files that end in {', '.join(READERS)}.")
    begins = sorted({file.name.split(".")[0].split("-0")[0] for file in found})
    if len(begins) > 1:
        raise ValueError(
            f"{field}: {folder} holds several splits ({', '.join(begins)}); use a pattern, as in "
            f"{found[0].parent}/{begins[0]}*."
        )
    return found


def _download(path: str, field: str) -> str:
    """The pattern of the local copies of files on the hub."""
    import huggingface_hub

    owner, _, rest = path.removeprefix(HUB).partition("/")
    name, _, pattern = rest.partition("/")
    try:
        folder = huggingface_hub.snapshot_download(
            f"{owner}/{name}", repo_type="dataset", allow_patterns=[pattern or "*"]
        )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{field}: cannot get {path!r} from the hub: {type(error).__name__}: {reason}"
        ) from error
    return f"{glob.escape(folder)}/{pattern or '**/*'}"


def _reader(file: Path, field: str):
    for suffix, reader in READERS.items():
        if file.name.endswith(suffix):
            return reader
    raise ValueError(f"{field}: {file} has none of the suffixes {', '.join(READERS)}.")


def _json_lines(file: Path) -> Iterator[tuple[str, Row]]:
    opener = gzip.open if file.suffix == ".gz" else open
    number = 0
    # In bytes, because text mode would also end a line at characters that JSON allows inside a string.
    with opener(file, "rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{file}:{number}", _json(f"{file}:{number}", line)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{file}:{number + 1}: cannot be read: {error}") from None


def _json(location: str, line: bytes) -> Row:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{location}: not a line of JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{location}: not a line of JSON that can be read: nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"{location}: expected a JSON object, found {shorten(repr(row))}")
    return row


def _csv(file: Path) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(1 << 30)
    with open(file, encoding="utf-8-sig", newline="") as lines:
        table = csv.DictReader(lines, strict=True)
        try:
            for row in table:
                if None in row or None in row.values():
                    raise ValueError(
                        f"{file}:{table.line_num}: a row of another length than the header's "
                        f"{len(table.fieldnames or ())} fields"
                    )
                yield f"{file}:{table.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{file}:{table.line_num + 1}: cannot be read: {error}") from None


def _parquet(file: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file, partitioning=None)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: not a Parquet file that can be read: {error}") from None
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"{file}:{number}", row


def _arrow(file: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow

    with pyarrow.memory_map(str(file)) as source:
        try:
            try:
                table = pyarrow.ipc.open_stream(source).read_all()  # what `datasets` writes
            except pyarrow.ArrowInvalid:
                table = pyarrow.ipc.open_file(source).read_all()
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: not an Arrow file that can be read: {error}") from None
        for number, row in enumerate(table.to_pylist(), start=1):
            yield f"{file}:{number}", row


READERS = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
