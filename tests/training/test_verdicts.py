"""A step that is made again is not judged again, so it cannot turn out otherwise."""

from dataclasses import replace

import numpy as np
import pytest

from grpo_jax.config import (
    EvaluationConfig,
    RewardConfig,
    RewardFunction,
    TrainConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.rewards import scoring
from grpo_jax.rewards.judged import Judged
from grpo_jax.training import loop, setup
from grpo_jax.training.records import Position, read_rows
from grpo_jax.training.verdicts import Verdicts, digest
from grpo_jax.types import Problem
from tests.tiny import tiny, vowels
from tests.training.test_loop import assert_equal, measured

PROBLEMS = [Problem("1+1=", "2"), Problem("2+3=", "5"), Problem("1+1=", "2")]


class Judge:
    """Counts what it is asked; under load it finds nothing right."""

    def __init__(self):
        self.asked, self.loaded = [], False

    def __call__(self, problems, completions):
        self.asked += list(zip([p.prompt for p in problems], completions, strict=True))
        return [
            ValueError("no idea") if text == "?" else None if text == "" else self.say(problem, text)
            for problem, text in zip(problems, completions, strict=True)
        ]

    def say(self, problem, text):
        return Judged(float(problem.answer == text and not self.loaded), "timeout" if self.loaded else "read")


def reward(judge, *, recorded=True):
    return scoring.WeightedReward("judge", scoring.Batched(judge, recorded=recorded), 1.0)


def scored(verdicts, judge, texts, *, step=1, failures=True):
    (remembered,) = verdicts.remembered([reward(judge)], step=step, failures=failures)
    return scoring.score(problems=PROBLEMS, completions=texts, rewards=[remembered], on_failure="unscored")


def same(one, other):
    np.testing.assert_array_equal(one.rewards, other.rewards)
    return one.verdicts == other.verdicts and len(one.failures) == len(other.failures)


def test_a_step_made_again_keeps_its_verdicts_and_asks_nobody(tmp_path):
    judge, texts = Judge(), ["2", "?", ""]
    with Verdicts(tmp_path, resumed=None) as verdicts:
        first = scored(verdicts, judge, texts)
    assert first.rewards[:, 0].tolist()[0] == 1 and len(first.failures) == 2
    assert "no idea" in first.failures[0] and first.verdicts[0] == {"judge": "read"}
    with (tmp_path / "verdicts.jsonl").open("a") as file:
        file.write('{"stage": "policy", "st')  # killed while writing
    judge.loaded, judge.asked = True, []
    with Verdicts(tmp_path, resumed=Position("policy", 0)) as verdicts:
        assert same(scored(verdicts, judge, texts), first) and judge.asked == []
        again = scored(verdicts, judge, ["2", "5", "2"])
        assert judge.asked == [("2+3=", "5")]  # the only one that is new
        assert again.rewards[:, 0].tolist() == [1, 0, 1]


def test_other_steps_and_other_completions_are_judged(tmp_path):
    judge = Judge()
    with Verdicts(tmp_path, resumed=None) as verdicts:
        scored(verdicts, judge, ["2", "5", "2"], step=1)
        scored(verdicts, judge, ["2", "5", "2"], step=2)
    assert len(judge.asked) == 6
    judge.asked = []
    with Verdicts(tmp_path, resumed=Position("policy", 1)) as verdicts:
        scored(verdicts, judge, ["2", "5", "2"], step=2)
        assert judge.asked == []
        scored(verdicts, judge, ["2", "5", "2"], step=3)
        assert len(judge.asked) == 3
    assert [row["step"] for row in read_rows(tmp_path / "verdicts.jsonl")] == [1, 2, 3]


def test_a_verdict_is_on_a_completion_of_a_problem(tmp_path):
    with Verdicts(tmp_path, resumed=None) as verdicts:
        assert scored(verdicts, Judge(), ["2", "2", "5"]).rewards[:, 0].tolist() == [1, 0, 0]
    problem = PROBLEMS[0]
    others = [replace(problem, answer="3"), replace(problem, metadata={"turns": ["a"]}), PROBLEMS[1]]
    assert len({digest(p, "2") for p in (problem, *others)}) == 4
    assert digest(replace(problem, metadata={"location": "elsewhere"}), "2") == digest(problem, "2")


def test_a_new_run_knows_nothing(tmp_path):
    judge = Judge()
    with Verdicts(tmp_path, resumed=None) as verdicts:
        scored(verdicts, judge, ["2", "5", "2"])
    with Verdicts(tmp_path, resumed=None) as verdicts:
        scored(verdicts, judge, ["2", "5", "2"])
    assert len(judge.asked) == 6


def test_a_failure_that_stops_a_run_may_be_tried_again(tmp_path):
    judge = Judge()
    with Verdicts(tmp_path, resumed=None) as verdicts:
        scored(verdicts, judge, ["2", "?", ""], failures=False)
    with Verdicts(tmp_path, resumed=Position("policy", 0)) as verdicts:
        judge.asked = []
        scored(verdicts, judge, ["2", "?", ""], failures=False)
    assert judge.asked == [("2+3=", "?"), ("1+1=", "")]


def test_the_first_verdict_on_a_completion_is_kept_within_a_step(tmp_path):
    judge = Judge()
    with Verdicts(tmp_path, resumed=None) as verdicts:
        scored(verdicts, judge, ["2", "5", "2"])
        judge.loaded = True
        assert scored(verdicts, judge, ["2", "5", "2"]).rewards[:, 0].tolist() == [1, 1, 1]


def test_rewards_that_are_not_recorded_are_left_alone(tmp_path):
    with Verdicts(tmp_path, resumed=None) as verdicts:
        plain = [reward(Judge(), recorded=False), scoring.WeightedReward("vowels", vowels, 1.0)]
        assert verdicts.remembered(plain, step=1, failures=True) == plain


def test_the_judges_with_limits_are_recorded():
    recorded = {name for name, f in scoring.BUILTINS.items() if getattr(f, "recorded", False)}
    assert recorded == {"math", "code", "reasoning_gym"}
    (built,) = scoring.build([RewardFunction("math", options={"mode": "strict"})])
    assert built.function.recorded


class VowelJudge(Judge):
    def say(self, problem, text):
        return Judged(0.0 if self.loaded else vowels(problem, text), "timeout" if self.loaded else "read")


@pytest.fixture
def judge(monkeypatch):
    judge = VowelJudge()
    monkeypatch.setitem(scoring.BUILTINS, "slow_judge", scoring.Batched(judge, recorded=True))
    return judge


def config(folder):
    """Three steps judged by `slow_judge`, a checkpoint after the second, held-out problems by another reward."""
    base = tiny(
        folder,
        reward=RewardConfig((RewardFunction("slow_judge"), RewardFunction("exact_match")), "unscored"),
        warm_start=WarmStartConfig(steps=0),
        update=UpdateConfig(),
        train=TrainConfig(steps=3),
        evaluation=EvaluationConfig(every=0, problems=2, samples=1, success="exact_match"),
    )
    return replace(base, checkpoint=replace(base.checkpoint, every=2))


def test_a_run_killed_after_judging_ends_as_one_never_killed_whatever_the_load(tmp_path, judge, monkeypatch):
    whole = loop.train(setup.prepare(config(tmp_path / "whole")))
    real = loop.optimize

    def killed_in_the_third_step(run, state, *rest):
        if int(state.step) == 2:
            raise KeyboardInterrupt
        return real(run, state, *rest)

    monkeypatch.setattr(loop, "optimize", killed_in_the_third_step)
    with pytest.raises(KeyboardInterrupt):
        loop.train(setup.prepare(config(tmp_path / "run")))
    monkeypatch.setattr(loop, "optimize", real)
    judge.loaded, judge.asked = True, []
    again = config(tmp_path / "run")
    state = loop.train(setup.prepare(replace(again, run=replace(again.run, resume=True))))
    assert judge.asked == []
    assert_equal(state, whole)
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    samples = [read_rows(tmp_path / name / "samples.jsonl") for name in ("run", "whole")]
    assert samples[0] == samples[1] and samples[0][-1]["verdicts"] == {"slow_judge": "read"}
