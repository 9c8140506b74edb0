"""Rows on disk: written once, whatever kills and resumes happen."""

import json

import numpy as np
import pytest

from grpo_jax.training.records import Position, RowWriter, SampleWriter, read_rows, save_evaluation


def test_rows_are_on_disk_before_the_writer_is_closed(tmp_path):
    writer = RowWriter(tmp_path / "rows.jsonl")
    writer.write({"stage": "policy", "step": 1, "b": 2, "a": 1.5})
    assert (tmp_path / "rows.jsonl").read_text() == '{"a": 1.5, "b": 2, "stage": "policy", "step": 1}\n'


def test_resuming_drops_later_rows_and_an_unfinished_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowWriter(path) as writer:
        for stage, step in [
            ("warm_start", 1),
            ("warm_start", 9),
            ("policy", 0),
            ("policy", 1),
            ("policy", 2),
        ]:
            writer.write({"stage": stage, "step": step})
    with path.open("a") as file:
        file.write('{"stage": "policy", "st')  # killed while writing
    with RowWriter(path, resumed=Position("policy", 1)) as writer:
        writer.write({"stage": "policy", "step": 2, "again": True})
    assert [(row["stage"], row["step"], "again" in row) for row in read_rows(path)] == [
        ("warm_start", 1, False),
        ("warm_start", 9, False),
        ("policy", 0, False),
        ("policy", 1, False),
        ("policy", 2, True),
    ]


def test_resuming_in_the_warm_start_drops_the_policy_stage(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowWriter(path) as writer:
        writer.write({"stage": "warm_start", "step": 5})
        writer.write({"stage": "policy", "step": 1})
    RowWriter(path, resumed=Position("warm_start", 5)).close()
    assert read_rows(path) == [{"stage": "warm_start", "step": 5}]


def test_a_new_run_starts_an_empty_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"stage": "policy", "step": 5}\n')
    RowWriter(path).close()
    assert path.read_text() == ""


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"step":\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: not JSON"):
        read_rows(path)


def test_an_unknown_stage_is_named(tmp_path):
    with pytest.raises(ValueError, match="'grpo' is unknown; expected one of warm_start, policy"):
        RowWriter(tmp_path / "rows.jsonl").write({"stage": "grpo", "step": 1})


def test_samples_are_spread_over_the_batch_and_survive_any_text(tmp_path):
    texts = [f"{i}\ud800\x00\u202e<b>" for i in range(8)]  # a lone surrogate cannot be encoded as UTF-8
    with SampleWriter(tmp_path, count=3) as writer:
        writer.write(
            step=4,
            stage="policy",
            prompts=[f"p{i}" for i in range(8)],
            completions=texts,
            rewards=np.array([0, 1, 0, 1, 0, 1, 0, np.nan], np.float32),
            advantages=np.arange(8.0),
            stop_reasons=np.array([0, 0, 0, 1, 0, 0, 0, 0]),
        )
    rows = read_rows(tmp_path / "samples.jsonl")
    assert [row["row"] for row in rows] == [0, 3, 7]
    assert rows[1] == {
        "step": 4,
        "stage": "policy",
        "row": 3,
        "prompt": "p3",
        "completion": texts[3],
        "reward": 1.0,
        "advantage": 3.0,
        "stop_reason": "truncated",
    }
    assert rows[2]["reward"] is None


def test_an_evaluation_is_saved_whole(tmp_path):
    completions = [{"problem": 0, "sample": i, "completion": "é", "correct": i == 1} for i in range(2)]
    path = save_evaluation(tmp_path, completions, step=20, stage="policy")
    assert path == tmp_path / "evaluations" / "policy_000020.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == completions
