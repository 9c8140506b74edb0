"""Many rewards on many completions; failures shown or left out."""

import numpy as np
import pytest

from grpo_jax.config import RewardFunction
from grpo_jax.rewards.judged import Judged
from grpo_jax.rewards.scoring import CHECKS, Batched, WeightedReward, build, check, score
from grpo_jax.types import Problem

PROBLEMS = [Problem(f"{i}+1=", str(i + 1), {"location": f"file:{i}"}) for i in range(4)]
COMPLETIONS = ["1", "so 2", "3", "x"]


def judge(*functions, on_failure="error", problems=PROBLEMS, completions=COMPLETIONS):
    return score(problems=problems, completions=completions, rewards=functions, on_failure=on_failure)


def test_rewards_are_weighted_and_kept_apart():
    rewards = build([RewardFunction("exact_match"), RewardFunction("number_match", weight=0.5)])
    scores = judge(*rewards)
    np.testing.assert_array_equal(scores.rewards, [[1, 1], [0, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(scores.total, [1.5, 0.5, 1.5, 0])
    assert scores.scored.all() and scores.rewards.dtype == scores.total.dtype == np.float32
    assert [r.name for r in rewards] == ["exact_match", "number_match"]


def test_one_function_twice_has_two_names():
    rewards = build([RewardFunction("format", options={"pattern": p}) for p in ("[0-9]+", "so .*")])
    assert [r.name for r in rewards] == ["format", "format_"]
    np.testing.assert_array_equal(judge(*rewards).rewards, [[1, 0], [0, 1], [1, 0], [0, 0]])


def returns(value, bad=2):
    def reward(problem, completion):
        if completion == COMPLETIONS[bad]:
            return value() if callable(value) else value
        return 1.0

    return WeightedReward("mine", reward, 1.0)


def raising():
    raise RuntimeError("checker broke")


FAILURES = [
    (raising, "RuntimeError: checker broke"),
    (None, "returned None"),
    (float("nan"), "expected a finite number"),
    (float("inf"), "expected a finite number"),
    (1e60, "expected a finite number"),
    ("1", "returned '1', expected a number"),
    (np.ones(2), "expected a finite number"),
]


@pytest.mark.parametrize(("value", "says"), FAILURES)
def test_a_failure_is_an_error_that_shows_problem_and_completion(value, says):
    with pytest.raises(ValueError) as caught, np.errstate(over="ignore"):
        judge(returns(value))
    for part in (says, "'mine'", "file:2", "'2+1='", "answer: '3'", "completion: '3'"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("value", "says"), FAILURES)
def test_fault_21_a_failure_may_be_unscored_instead_and_is_no_zero(value, says):
    with np.errstate(over="ignore"):
        scores = judge(returns(value), build([RewardFunction("number_match")])[0], on_failure="unscored")
    assert scores.scored.tolist() == [True, True, False, True] and scores.total.tolist() == [2, 2, 0, 1]
    assert np.isnan(scores.rewards[2, 0]) and scores.rewards[2, 1] == 1
    assert len(scores.failures) == 1 and says in scores.failures[0]


def test_long_text_is_shortened_in_the_error():
    with pytest.raises(ValueError) as caught:
        judge(returns(None, bad=0), completions=["1", "b", "c", "d"], problems=[Problem("p" * 9000, "a")] * 4)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [True, 1, np.float64(1), np.ones(())])
def test_any_kind_of_number_will_do(value):
    assert judge(returns(value)).total.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ([], "reward.functions is empty"),
        ([RewardFunction("exact_mtch")], "Did you mean 'exact_match'"),
        ([RewardFunction("format")], "missing a required .*argument: 'pattern'"),
        ([RewardFunction("exact_match", options={"strip": True})], "unexpected keyword argument 'strip'"),
        ([RewardFunction("exact_match", weight=float("nan"))], "weight of 'exact_match' is nan"),
    ],
)
def test_wrong_settings_are_found_when_built(functions, says):
    with pytest.raises(ValueError, match=says):
        build(functions)


def test_numbers_of_problems_and_completions_must_agree():
    with pytest.raises(ValueError, match="4 problems but 1 completions"):
        judge(returns(1), completions=["1"])


def test_problems_that_cannot_be_judged_are_found_before_the_first_step():
    rewards = build([RewardFunction("number_match")])
    check(rewards, PROBLEMS)
    bad = [Problem("?", "twelve", {"location": "file:7"}), Problem("?", "")]
    with pytest.raises(
        ValueError, match=r"'number_match' can not judge 2 of 6 problems:\n  file:7: .*'twelve'"
    ):
        check(rewards, [*PROBLEMS, *bad])
    with pytest.raises(ValueError, match="'code' can not judge 4 of 4 problems"):
        check([WeightedReward("code", Batched(len), 1.0, check=CHECKS["code"])], PROBLEMS)


def test_verdicts_are_recorded():
    rewards = (
        WeightedReward("mine", lambda p, c: Judged(c == p.answer, "same" if c == p.answer else "other"), 1.0),
    )
    scores = judge(*rewards)
    assert scores.total.tolist() == [1, 0, 1, 0]
    assert [v["mine"] for v in scores.verdicts] == ["same", "other", "same", "other"]
    assert judge(*build([RewardFunction("exact_match")])).verdicts == ({}, {}, {}, {})


@pytest.mark.parametrize("name", ["exact_match", "number_match", "math"])
def test_reasoning_is_not_what_is_judged(name):
    """An answer that was only thought, or never got out of the thinking, is none; what follows counts."""
    if name == "math":
        pytest.importorskip("math_verify")
    problem = Problem("1+1=", "2")
    texts = ["so 2</think>2", "so 2</think>3", "so 2</think>", "2", "<think>2", "a</think>b</think>2", ""]
    (reward,) = build([RewardFunction(name, after="</think>")])
    scores = judge(reward, problems=[problem] * len(texts), completions=texts)
    np.testing.assert_array_equal(scores.rewards[:, 0], [1, 0, 0, 0, 0, 1, 0])


def test_each_reward_reads_its_own_part():
    rewards = build([RewardFunction("thinking"), RewardFunction("exact_match", after="</think>")])
    scores = judge(*rewards, problems=[Problem("1+1=", "2")] * 2, completions=["so 2</think> 2", "2"])
    np.testing.assert_array_equal(scores.rewards, [[1, 1], [0, 0]])
