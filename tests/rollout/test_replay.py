"""What was recorded comes back bit for bit, for the call and the prompts it was sampled for."""

import json

import jax
import numpy as np
import pytest

from grpo_jax.rollout import NativeEngine, RecordingEngine, ReplayEngine, Sampling
from grpo_jax.types import joined
from tests.rollout.tiny import PROMPTS, model

SAMPLING = Sampling(max_tokens=9, group_size=3, stop_ids=(0,), top_k=7)
KEYS = [jax.random.fold_in(jax.random.key(3), step) for step in range(3)]


@pytest.fixture(scope="module", params=["jsonl", "parquet"])
def recorded(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / f"rollouts.{request.param}"
    graphdef, params = model()
    engine = RecordingEngine(NativeEngine(graphdef, max_prompt_length=8), path)
    engine.load(params)
    rollouts = [engine.generate(PROMPTS, sampling=SAMPLING, key=key) for key in KEYS]
    engine.close()
    return path, rollouts


def test_calls_come_back_bit_for_bit_in_any_order(recorded):
    path, rollouts = recorded
    engine = ReplayEngine(path, max_prompt_length=8)
    engine.load(None)
    for step in (2, 0, 1):
        again = engine.generate(PROMPTS, sampling=SAMPLING, key=KEYS[step])
        jax.tree.map(np.testing.assert_array_equal, again, rollouts[step])
        jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), again, rollouts[step])
    engine.close()


def test_another_call_and_other_prompts_are_errors(recorded):
    path, _ = recorded
    engine = ReplayEngine(path, max_prompt_length=8)
    with pytest.raises(ValueError, match=r"no call with key .*; it has 3 calls"):
        engine.generate(PROMPTS, sampling=SAMPLING, key=jax.random.key(9))
    others = [*PROMPTS[:2], [1, 1], *PROMPTS[3:]]
    with pytest.raises(ValueError, match="prompts differ from row 6 on"):
        engine.generate(others, sampling=SAMPLING, key=KEYS[0])
    with pytest.raises(
        ValueError, match="recorded for 15 completions, asked for 12; the prompts differ from row 12 on"
    ):
        engine.generate(PROMPTS[:4], sampling=SAMPLING, key=KEYS[0])


def test_a_call_recorded_again_takes_the_place_of_the_first(recorded):
    """As in a run that resumes before it: even where the first was cut off by a kill, in the middle of a line."""
    path, rollouts = recorded
    if path.suffix == ".jsonl":
        whole = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*whole[:7], *whole, *whole[15:22], whole[22][:40]]))
    graphdef, params = model()
    engine = RecordingEngine(NativeEngine(graphdef, max_prompt_length=8), path)
    engine.load(params)
    engine.generate(PROMPTS, sampling=SAMPLING, key=KEYS[1])
    again = ReplayEngine(path, max_prompt_length=8)
    for key, rollout in zip(KEYS, rollouts, strict=True):
        jax.tree.map(
            np.testing.assert_array_equal, again.generate(PROMPTS, sampling=SAMPLING, key=key), rollout
        )


def test_groups_are_played_back_one_by_one(recorded):
    path, rollouts = recorded
    groups = {}
    engine = ReplayEngine(path, max_prompt_length=8)
    engine.generate(PROMPTS, sampling=SAMPLING, key=KEYS[0], on_group=groups.__setitem__)
    assert list(groups) == [0, 1, 2, 3, 4]
    jax.tree.map(
        np.testing.assert_array_equal, joined([groups[place] for place in range(len(PROMPTS))]), rollouts[0]
    )


def test_what_is_not_a_recording_is_an_error_that_says_where(recorded, tmp_path):
    path, _ = recorded
    broken = tmp_path / f"broken{path.suffix}"
    if path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        broken.write_text("\n".join([*lines[:4], lines[4][:30]]))
        expected = r"broken\.jsonl, line 5: not a recorded completion"
    else:
        broken.mkdir()
        (broken / "1-2.parquet").write_text("nothing")
        expected = r"1-2\.parquet: not a recording"
    with pytest.raises(ValueError, match=expected):
        ReplayEngine(broken, max_prompt_length=8)
    with pytest.raises(ValueError, match=r"ends in '\.csv'; expected \.jsonl or \.parquet"):
        RecordingEngine(None, tmp_path / "rollouts.csv")


def row(**changes):
    """A recorded completion, as a person may write one down."""
    written = {"call": "mine", "row": 0, "group": 0, "stop_reason": "stopped", "prompt_ids": [1, 2]}
    numbers = {
        "completion_ids": [3, 0],
        "sampler_log_probs": [-1.0, -2.0],
        "sampler_full_log_probs": [-1, -2],
    }
    return {name: value for name, value in (written | numbers | changes).items() if value is not None}


def played(tmp_path, *lines):
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = ReplayEngine(path, max_prompt_length=8)
    return engine.generate([[1, 2]], sampling=Sampling(max_tokens=4, group_size=len(lines)), call="mine")


def test_a_call_can_be_known_by_a_name_of_its_own(tmp_path):
    rollout = played(
        tmp_path, row(sampled=[True, False]), row(row=1, stop_reason="truncated", sampled=[True, True])
    )
    assert rollout.completion_ids.tolist() == [[3, 0, 0, 0]] * 2 and rollout.stop_reason.tolist() == [0, 1]
    assert rollout.sampler_full_log_probs.tolist() == [[-1, -2, 0, 0]] * 2
    assert rollout.sampled.tolist() == [[True, False, False, False], [True, True, False, False]]
    assert played(tmp_path, row()).sampled is None
    with pytest.raises(ValueError, match="has no call with name mine; it has 1 calls"):
        played(tmp_path, row(call="yours"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([row(completion_ids=None)], r"line 1: not a recorded completion \(no completion_ids\)"),
        ([row(), 7], r"line 2: not a recorded completion \(no call\)"),
        ([row(), row(row=2)], "line 2: row 2 of mine does not follow the one before"),
        ([row(row=1)], "line 1: row 1 of mine does not follow the one before"),
        ([row(), row(row=1, sampler_log_probs=[-1])], "row 1 has 1 sampler_log_probs; expected 2, one per"),
        (
            [row(sampled=[True, True]), row(row=1)],
            "row 1 has 0 sampled; expected 2, one per completion token",
        ),
        ([row(completion_ids=[1] * 5)], "row 0 has 5 completion_ids; expected at most 4"),
        (
            [row(), row(row=1, sampler_log_probs=[-1, float("nan")])],
            r"row 1 has sampler_log_probs \[-1, nan\]; expected finite numbers",
        ),
        ([row(completion_ids=[3, 1.5])], r"row 0 has completion_ids \[3, 1.5\]; expected int32 values"),
        ([row(completion_ids=[3, 2**40])], "call mine: Python integer 1099511627776 out of bounds"),
        ([row(sampled=[True, 7])], r"row 0 has sampled \[True, 7\]; expected bool values"),
        (
            [row(completion_ids=[], sampler_log_probs=[], sampler_full_log_probs=[])],
            "row 0 has no completion_ids; expected at least one, the stop token included",
        ),
        ([row(stop_reason="bored")], "stop_reason is 'bored'; expected stopped or truncated"),
    ],
)
def test_rows_that_do_not_go_together_are_errors_that_say_which(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        played(tmp_path, *lines)
