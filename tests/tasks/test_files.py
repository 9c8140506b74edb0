"""Files of problems: the three formats, and mistakes with file and line."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from grpo_jax.config import FileData
from grpo_jax.tasks import build
from tests.shared import shared

ROWS = [{"question": f"What is {i}+1?", "answer": float(i + 1)} for i in range(40)]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_jsonl_gzip_and_parquet_give_the_same_problems(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    plain, zipped, parquet = (
        [(p.prompt, p.answer) for p in build(FileData(path=str(tmp_path / name))).train]
        for name in ("a.jsonl", "a.jsonl.gz", "a.parquet")
    )
    assert plain == zipped == parquet and ("What is 6+1?\n", "7") in plain


def test_characters_that_end_a_line_only_in_text_mode(tmp_path):
    rows = [{"question": f"a\u2028b\x0b{i}", "answer": "x"} for i in range(30)]
    path = write(tmp_path / "a.jsonl", [json.dumps(row, ensure_ascii=False) for row in rows] + ["", "  "])
    sides = build(FileData(path=path, prompt="{question}"))
    assert {p.prompt for p in [*sides.train, *sides.held_out]} == {row["question"] for row in rows}


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    (tmp_path / "a.jsonl").write_bytes("\ufeff".encode() + json.dumps(ROWS[0]).encode())
    assert build(FileData(path=str(tmp_path / "a.jsonl"), held_out_fraction=0)).train[0].answer == "1"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question": "q", "answer": }', "not a line of JSON"),
        ("[1]", r"expected a JSON object, found \[1\]"),
        ("[" * 100_000, "not a line of JSON"),
        ('{"question": "q"}', "no field 'answer'"),
        ('{"question": "q", "answer": NaN}', "field 'answer' is nan"),
    ],
)
def test_a_bad_line_says_where(tmp_path, line, says):
    path = write(tmp_path / "bad.jsonl", [json.dumps(ROWS[0]), "", line])
    with pytest.raises(ValueError, match=rf"bad\.jsonl:3: .*{says}"):
        build(FileData(path=path))


def test_bytes_that_are_not_utf8_say_where(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(json.dumps(ROWS[0]).encode() + b'\n{"question": "\xff"}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:2: not a line of JSON"):
        build(FileData(path=str(tmp_path / "bad.jsonl")))


def test_a_gzip_file_cut_short_says_where(tmp_path):
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode())
    (tmp_path / "bad.jsonl.gz").write_bytes(whole[:-30])
    with pytest.raises(ValueError, match=r"bad\.jsonl\.gz:\d+: cannot be read"):
        build(FileData(path=str(tmp_path / "bad.jsonl.gz")))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.jsonl", None, "data.path: there is no file"),
        ("empty.jsonl", b"\n", "holds no problems"),
        ("a.txt", b"x", "none of the suffixes .jsonl, .jsonl.gz, .csv, .parquet, .arrow"),
        ("a.parquet", b"not parquet", "not a Parquet file"),
    ],
)
def test_a_bad_file_is_one_clear_error(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        build(FileData(path=str(tmp_path / name)))


def test_no_path_is_an_error():
    with pytest.raises(ValueError, match=r"data\.path"):
        build(FileData())


def test_a_held_out_file_is_taken_whole_and_may_not_overlap(tmp_path):
    train = write(tmp_path / "train.jsonl", map(json.dumps, ROWS[:30]))
    test = write(tmp_path / "test.jsonl", map(json.dumps, ROWS[30:]))
    sides = build(FileData(path=train, held_out_path=test))
    assert (len(sides.train), len(sides.held_out)) == (30, 10)
    overlapping = write(tmp_path / "over.jsonl", map(json.dumps, ROWS[25:]))
    with pytest.raises(ValueError, match=r"5 held-out prompts are also training problems.*train\.jsonl:26"):
        build(FileData(path=train, held_out_path=overlapping))


@pytest.mark.parametrize(
    ("name", "fields", "count"),
    [
        ("gsm8k_train.jsonl", {"answer_pattern": r"####\s*(.+)"}, 7473),
        ("svamp.jsonl", {"prompt": "{Body} {Question}", "answer_field": "Answer"}, 1000),
        ("mawps_singleop.jsonl", {"prompt": "{input}", "answer_field": "target"}, None),
        ("amc23.jsonl", {"prompt": "{problem}"}, 40),
    ],
)
def test_real_problem_sets(name, fields, count):
    sides = build(FileData(path=str(shared(f"data/{name}")), **fields))
    problems = [*sides.train, *sides.held_out]
    assert count is None or len(problems) == count
    assert all(float(p.answer.replace(",", "")) == float(p.answer.replace(",", "")) for p in problems)
    assert not any(p.answer.endswith(".0") for p in problems)
