"""Metric rows, TensorBoard events read back, timings, and means that survive a NaN."""

import json
import struct
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from grpo_jax.training.metrics import MetricWriter, PhaseTimer, rollout_metrics
from grpo_jax.training.records import Position, read_rows


def tensorboard_events(folder):
    """Events of a folder's files in the order written; a record is length, its CRC, bytes, their CRC."""
    events = []
    for path in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def scalars(folder):
    return [(v.tag, e.step, v.simple_value) for e in tensorboard_events(folder) for v in e.summary.value]


def test_a_row_holds_plain_numbers_with_null_for_what_is_not_finite(tmp_path):
    with MetricWriter(tmp_path) as writer:
        written = writer.write(
            {
                "reward/mean": jnp.asarray(0.5, jnp.bfloat16),
                "grad/norm": np.float32("nan"),
                "kl/ref": float("inf"),
                "update/skipped": np.int64(1),
                "length/mean": jnp.ones((1,)) * 12,
            },
            step=3,
            stage="policy",
        )
        text = (tmp_path / "metrics.jsonl").read_text()
    assert text == (
        '{"grad/norm": null, "kl/ref": null, "length/mean": 12.0, "reward/mean": 0.5, "stage": "policy", '
        '"step": 3, "update/skipped": 1.0}\n'
    )
    assert json.loads(text) == {**written, "step": 3, "stage": "policy"}
    assert sorted(scalars(tmp_path / "tensorboard" / "policy")) == [
        ("length/mean", 3, 12.0),
        ("reward/mean", 3, 0.5),
        ("update/skipped", 3, 1.0),
    ]


def test_stages_are_runs_of_their_own_in_tensorboard(tmp_path):
    with MetricWriter(tmp_path) as writer:
        writer.write({"grad/norm": 1.0}, step=1, stage="warm_start")
        writer.write({"grad/norm": 2.0}, step=1, stage="policy")
    assert scalars(tmp_path / "tensorboard" / "warm_start") == [("grad/norm", 1, 1.0)]
    assert scalars(tmp_path / "tensorboard" / "policy") == [("grad/norm", 1, 2.0)]


def test_a_resumed_run_has_each_step_once(tmp_path):
    with MetricWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write({"reward/mean": step / 10}, step=step, stage="policy")
    with MetricWriter(tmp_path, resumed=Position("policy", 2)) as writer:
        writer.write({"reward/mean": 0.9}, step=3, stage="policy")
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [(row["step"], row["reward/mean"]) for row in rows] == [(1, 0.1), (2, 0.2), (3, 0.9)]
    # TensorBoard drops earlier events from the step of a session start on.
    starts = [
        event.step
        for event in tensorboard_events(tmp_path / "tensorboard" / "policy")
        if event.session_log.status == event_pb2.SessionLog.START
    ]
    assert starts[-1] == 3


@pytest.mark.parametrize("value", [np.zeros(2), "high", None, [1.0, 2.0]])
def test_a_value_that_is_not_one_number_is_named(tmp_path, value):
    with (
        MetricWriter(tmp_path) as writer,
        pytest.raises(ValueError, match="'loss/policy' must be one number"),
    ):
        writer.write({"loss/policy": value}, step=1, stage="policy")


def test_reserved_names_are_refused(tmp_path):
    with MetricWriter(tmp_path) as writer, pytest.raises(ValueError, match="'step' is reserved"):
        writer.write({"step": 1.0}, step=1, stage="policy")


def test_missing_wandb_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"grpo_jax\[wandb\]"):
        MetricWriter(tmp_path, wandb={"project": "p"})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_phases_add_up_and_an_inner_phase_is_counted_once():
    timer = PhaseTimer()
    start = time.perf_counter()
    with timer("rollout"):
        time.sleep(0.02)
        with timer("reward"):
            time.sleep(0.03)
    with timer("rollout"):
        time.sleep(0.02)
    elapsed = time.perf_counter() - start
    seconds = timer.take()
    assert set(seconds) == {"time/rollout_seconds", "time/reward_seconds"}
    assert seconds["time/rollout_seconds"] >= 0.04
    assert seconds["time/reward_seconds"] >= 0.03
    assert sum(seconds.values()) <= elapsed
    assert timer.take() == {}


def test_a_phase_that_fails_is_still_timed():
    timer = PhaseTimer()
    with pytest.raises(RuntimeError), timer("update"):
        raise RuntimeError
    assert "time/update_seconds" in timer.take()


def test_a_missing_reward_leaves_the_mean_of_the_others():
    """Fault 15: rewards 1, none, 0 have mean 0.5 over two, with one counted as unscored."""
    metrics = rollout_metrics(
        rewards=np.array([[1.0, np.nan], [np.nan, np.nan], [0.0, np.nan]]),
        names=["exact_match", "format"],
        total=np.array([1.0, np.nan, 0.0]),
        scored=np.array([True, False, True]),
        lengths=np.array([3, 9, 6]),
        stop_reasons=np.array([0, 1, 0]),
        advantages=np.array([1.0, 0.0, -1.0]),
    )
    assert metrics == {
        "rewards/exact_match/mean": 0.5,
        "reward/mean": 0.5,  # rewards/format/mean has no value, so it is left out
        "reward/unscored_count": 1.0,
        "length/mean": 6.0,
        "length/positive_mean": 3.0,
        "length/negative_mean": 6.0,
        "length/total": 18.0,
        "length/truncated_fraction": pytest.approx(1 / 3),
    }


def test_truncated_completions_count_in_the_mean_length():
    """Fault 38: lengths 3 and 9, the second truncated and masked from the loss, have mean 6."""
    metrics = rollout_metrics(
        rewards=np.zeros((2, 1)),
        names=["exact_match"],
        total=np.zeros(2),
        scored=np.ones(2, bool),
        lengths=np.array([3, 9]),
        stop_reasons=np.array([0, 1]),
        advantages=np.zeros(2),
    )
    assert metrics["length/mean"] == 6
