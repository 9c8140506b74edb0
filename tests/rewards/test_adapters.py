"""Rewards with the signatures of other programs, by import path."""

import asyncio

import pytest

from grpo_jax.config import RewardFunction
from grpo_jax.rewards import adapters, scoring
from grpo_jax.types import Message, Problem

PROBLEMS = [Problem("a?", "1", {"level": 3, "only_here": 1}), Problem("b?", "2", {"level": 4})]
HERE = "tests.rewards.test_adapters"


def score(name, completions=("1", "x"), problems=PROBLEMS, on_failure="error", **options):
    rewards = scoring.build([RewardFunction(name, options=options)])
    return scoring.score(problems=problems, completions=completions, rewards=rewards, on_failure=on_failure)


def like_trl(prompts, completions, answer, level, bonus=0.0, **kwargs):
    assert prompts == ["a?", "b?"] and level == [3, 4] and not kwargs
    return [bonus + float(c == a) for c, a in zip(completions, answer, strict=True)]


def like_trl_chat(prompts, completions, answer, **kwargs):
    assert prompts[0] == [{"role": "user", "content": "hi"}]
    return [float(completion[0]["content"] == a) for completion, a in zip(completions, answer, strict=True)]


async def like_trl_async(prompts, completions, **kwargs):
    await asyncio.sleep(0.01)
    return [None, 1.0]


def like_verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "level": extra_info["level"]}


def like_verl_broken(data_source, solution_str, ground_truth, extra_info=None):
    return 1 / (solution_str == ground_truth)


async def slow(problem, completion, delay=0.2):
    await asyncio.sleep(delay)
    if completion == "bad":
        raise RuntimeError("the judge is down")
    return float(completion == problem.answer)


def plain(problem, completion, *, completion_length):
    return completion_length / 10


def test_a_reward_by_import_path_is_named_after_its_function():
    (reward,) = scoring.build([RewardFunction(f"{HERE}:plain")])
    assert reward.name == "plain" and reward.takes_length


def test_trl():
    assert score(f"trl:{HERE}:like_trl", bonus=0.5).total.tolist() == [1.5, 0.5]
    chats = [Problem((Message("user", "hi"),), "1")] * 2
    assert score(f"trl:{HERE}:like_trl_chat", problems=chats).total.tolist() == [1, 0]
    scores = score(f"trl:{HERE}:like_trl_async", on_failure="unscored")
    assert scores.scored.tolist() == [False, True]


def test_verl():
    assert score(f"verl:{HERE}:like_verl").total.tolist() == [1, 0]
    scores = score(f"verl:{HERE}:like_verl_broken", on_failure="unscored")
    assert scores.scored.tolist() == [True, False] and "ZeroDivisionError" in scores.failures[0]


def test_coroutines_wait_together():
    problems = [Problem("?", "1")] * 64
    start = asyncio.new_event_loop().time()
    assert score(f"{HERE}:slow", ["1"] * 64, problems).total.tolist() == [1] * 64
    assert asyncio.new_event_loop().time() - start < 64 * 0.2 / 4


def test_a_coroutine_that_fails_fails_alone():
    scores = score(f"{HERE}:slow", ["bad", "2"], on_failure="unscored", delay=0.0)
    assert scores.scored.tolist() == [False, True] and "the judge is down" in scores.failures[0]


def test_works_where_a_loop_already_runs():
    async def notebook():
        return score(f"{HERE}:slow", delay=0.0).total.tolist()

    assert asyncio.run(notebook()) == [1, 0]


@pytest.mark.parametrize("failing", [lambda **_: [1.0], lambda **_: 1 / 0])
def test_a_batched_reward_that_fails_fails_for_all_and_says_so(failing):
    reward = scoring.WeightedReward("mine", scoring.Batched(adapters.from_trl(failing)), 1.0)
    arguments = {"problems": PROBLEMS, "completions": ["1", "2"], "rewards": [reward]}
    assert not scoring.score(**arguments, on_failure="unscored").scored.any()
    with pytest.raises(ValueError, match=r"returned 1 values for 2 completions|division by zero"):
        scoring.score(**arguments, on_failure="error")


def test_a_wrong_path_is_one_clear_error():
    with pytest.raises(ValueError, match="has no 'nothing'"):
        scoring.build([RewardFunction(f"trl:{HERE}:nothing")])
