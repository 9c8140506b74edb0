"""Suites: what a name means, who judges, and which mistakes are named."""

import json
from dataclasses import replace

import pytest

from grpo_jax.config import (
    ArithmeticData,
    Config,
    EvaluationConfig,
    RewardConfig,
    RewardFunction,
    RolloutConfig,
)
from grpo_jax.evaluation.suites import load, plain, with_system
from grpo_jax.experiment import to_source
from grpo_jax.types import Message, Problem
from tests.shared import shared

CONFIG = Config(
    data=ArithmeticData(max_digits=1, size=100, held_out_fraction=0.3),
    reward=RewardConfig((RewardFunction("tests.tiny:vowels"), RewardFunction("number_match", 0.5))),
    evaluation=EvaluationConfig(success="number_match"),
    rollout=RolloutConfig(max_completion_length=7),
)


def test_a_runs_own_problems_are_judged_by_its_success_reward():
    suite = load("run", own=CONFIG)
    assert suite.name == "held-out" and suite.reward.name == "number_match" and suite.vote("so 3") == "3"
    assert (suite.max_completion_length, suite.on_failure) == (7, "error")
    assert all(eval(p.prompt.rstrip("=")) == int(p.answer) for p in suite.problems)
    assert load("run", own=CONFIG, problems=5).problems == suite.problems[:5]


def test_other_tests_of_a_program_are_other_problems():
    own = load("run", own=CONFIG, problems=2)
    changed = [replace(problem, metadata={"test_list": ["assert f(1) == 2"]}) for problem in own.problems]
    assert replace(own, problems=changed).digest != own.digest


def test_the_same_problems_are_known_again_in_another_process():
    """Sets of text have another order there, and objects another address."""
    told = {"options": {f"word {i}" for i in range(20)}, "nested": [{"of": object()}, (1, 2.5, None)], 3: "x"}
    again = {
        3: "x",
        "nested": [{"of": object()}, (1, 2.5, None)],
        "options": set(sorted(told["options"])[::-1]),
    }
    assert plain(told) == plain(again)
    assert plain(told) != plain(again | {3: "y"})


def test_another_run_or_an_experiment_file_has_the_same_problems(tmp_path):
    (tmp_path / "config.py").write_text(to_source(CONFIG))
    own = load("run", own=CONFIG)
    for name in (str(tmp_path), str(tmp_path / "config.py")):
        assert load(name).digest == own.digest and load(name).name == own.name


def test_the_digest_is_of_problems_and_order(tmp_path):
    first, second = load("run", own=CONFIG, problems=5), load("run", own=CONFIG, problems=6)
    assert first.digest != second.digest
    assert load("run", own=CONFIG, problems=5, system_prompt="Be brief.").digest != first.digest


def test_a_preset_brings_its_judge_and_lengths(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Q?", "answer": "#### 3"}))
    suite = load(f"gsm8k={tmp_path / 'rows.jsonl'}")
    assert (suite.name, suite.judge.name, suite.max_completion_length) == ("gsm8k", "math", 1024)
    assert suite.vote("\\boxed{3.0}") == "3" and suite.on_failure == "unscored"


def test_the_real_test_set():
    folder = shared("data/gsm8k_test.jsonl").parent
    assert len(load("gsm8k", data=folder).problems) == 1319
    assert len(load("aime24", data=folder, problems=7).problems) == 7


def test_a_system_prompt_makes_a_chat_and_takes_the_place_of_another():
    problem = with_system(Problem("1+1=", "2"), "Be brief.")
    assert problem.prompt == (Message("system", "Be brief."), Message("user", "1+1="))
    assert with_system(problem, "Be long.").prompt[0] == Message("system", "Be long.")
    assert len(with_system(problem, "Be long.").prompt) == 2


def test_what_cannot_be_judged_is_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "Q?", "answer": "#### ?"}))
    with pytest.raises(ValueError, match="reward 'math' can not judge 1 of 1 problems"):
        load(f"gsm8k={tmp_path / 'rows.jsonl'}")


def test_unknown_names_list_the_known(tmp_path):
    with pytest.raises(
        ValueError, match=r"tasks: got 'run', expected gsm8k, .* a run folder or an experiment"
    ):
        load("run")
    with pytest.raises(ValueError, match=r"tasks: got 'gsm9k', expected run, gsm8k"):
        load("gsm9k", own=CONFIG)
    (tmp_path / "config.py").write_text(to_source(Config(data=ArithmeticData(held_out_fraction=0))))
    with pytest.raises(ValueError, match="holds out no problems"):
        load(str(tmp_path))
