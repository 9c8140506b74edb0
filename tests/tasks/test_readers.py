"""Files of every kind, folders, patterns and the hub give the same rows."""

import csv
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from grpo_jax.config import FileData
from grpo_jax.tasks import build
from grpo_jax.tasks.readers import files, rows

ROWS = [{"question": f"Wie groß ist {i}, + 1?", "answer": str(i)} for i in range(6)]
TABLE = pyarrow.Table.from_pylist(ROWS)


def write_csv(path):
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ROWS[0])
        table.writeheader()
        table.writerows(ROWS)


def write_arrow(path, table=TABLE, new=pyarrow.ipc.new_stream):
    with pyarrow.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table)


WRITERS = {
    "a.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, ROWS))),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode())),
    "a.csv": write_csv,
    "a.parquet": lambda path: pyarrow.parquet.write_table(TABLE, path),
    "stream.arrow": write_arrow,
    "file.arrow": lambda path: write_arrow(path, new=pyarrow.ipc.new_file),
}


def content(path):
    return [dict(row) for _, row in rows(str(path), "data.path")]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows(tmp_path, name):
    WRITERS[name](tmp_path / name)
    assert content(tmp_path / name) == ROWS


def test_a_folder_that_the_datasets_library_saved(tmp_path):
    """Its layout: state.json lists the Arrow files; a dictionary of splits has a folder for each."""
    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        for number, part in enumerate((TABLE[:4], TABLE[4:])):
            write_arrow(folder / f"data-0000{number}-of-00002.arrow", part)
        names = [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]
        (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert content(tmp_path / "train") == ROWS
    with pytest.raises(ValueError, match=r"holds the splits train, test; name one, as in .*/train"):
        content(tmp_path)


def hub_layout(folder):
    (folder / "data").mkdir()
    pyarrow.parquet.write_table(TABLE[:3], folder / "data" / "train-00000-of-00002.parquet")
    pyarrow.parquet.write_table(TABLE[3:], folder / "data" / "train-00001-of-00002.parquet")
    pyarrow.parquet.write_table(TABLE[:2], folder / "data" / "test-00000-of-00001.parquet")
    (folder / "README.md").write_text("# a card")


def test_a_folder_of_several_splits_is_never_mixed(tmp_path):
    hub_layout(tmp_path)
    with pytest.raises(
        ValueError, match=r"several splits \(test, train\); use a pattern, as in .*/data/test\*"
    ):
        content(tmp_path)
    assert content(tmp_path / "data" / "train-*.parquet") == ROWS
    assert content(f"{tmp_path}/**/test*") == ROWS[:2]


def test_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    hub_layout(tmp_path)
    asked = []

    def snapshot_download(name, **options):
        asked.append((name, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert content("hf://datasets/openai/gsm8k/data/train-*.parquet") == ROWS
    assert asked == [("openai/gsm8k", {"repo_type": "dataset", "allow_patterns": ["data/train-*.parquet"]})]

    def unreachable(name, **options):
        raise ConnectionError("no route\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ValueError, match=r"cannot get 'hf://.*' from the hub: ConnectionError: no route$"):
        content("hf://datasets/openai/gsm8k/data/train-*.parquet")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.csv", b"question,answer\nx,1\ny\n", r"a\.csv:3: a row of another length than the header's 2"),
        ("a.csv", b"question,answer\nx,1,2\n", r"a\.csv:2: a row of another length"),
        ("a.csv", b'question,answer\n"x,1\n', r"a\.csv:\d: cannot be read"),
        ("a.csv", b"question,answer\n\xff,1\n", r"a\.csv:\d: cannot be read"),
        ("a.arrow", b"not arrow", "not an Arrow file that can be read"),
    ],
)
def test_a_bad_file_says_where(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=says):
        content(tmp_path / name)


def test_nothing_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no files that end in"):
        files(str(tmp_path), "data.path")
    with pytest.raises(ValueError, match="no file matches"):
        files(f"{tmp_path}/*.jsonl", "data.path")


def test_overlap_may_be_allowed_and_is_still_said(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        WRITERS["a.jsonl"](tmp_path / name)
    data = {"path": str(tmp_path / "a.jsonl"), "held_out_path": str(tmp_path / "b.jsonl")}
    with pytest.raises(ValueError, match=r"6 held-out prompts .* Or set data.allow_overlap"):
        build(FileData(**data))
    with pytest.warns(UserWarning, match="6 held-out prompts"):
        sides = build(FileData(**data, allow_overlap=True))
    assert len(sides.train) == len(sides.held_out) == 6
