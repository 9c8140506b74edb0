"""Votes: equal answers are one text, whatever they are written like; no answer is no vote."""

import pytest

from grpo_jax.config import RewardFunction
from grpo_jax.rewards.math import Verdict, judge
from grpo_jax.rewards.votes import voting

math, number, text = (voting(RewardFunction(name)) for name in ("math", "number_match", "exact_match"))


@pytest.mark.parametrize(
    "spellings",
    [
        [
            "so \\boxed{\\frac12}",
            "The answer is 1/2.",
            "#### 0.5",
            "\\boxed{\\dfrac{1}{2}}",
            "\\boxed{0.50 cm}",
        ],
        ["\\boxed{1,080}", "\\boxed{1080}", "#### $1080"],
        ["\\boxed{x^2+1}", "\\boxed{x^{2} + 1}"],
    ],
)
def test_spellings_of_an_answer_are_one_vote_and_the_judge_agrees(spellings):
    assert len({math(completion) for completion in spellings}) == 1
    assert all(judge(a, "\\boxed{}".replace("{}", f"{{{math(a)}}}")) is Verdict.EQUAL for a in spellings)


def test_other_answers_are_other_votes():
    completions = ["\\boxed{1}", "\\boxed{-1}", "\\boxed{1/3}", "\\boxed{0.333}", "\\boxed{x}", "\\boxed{X}"]
    assert len({math(completion) for completion in completions}) == len(completions)


def test_without_an_answer_there_is_no_vote():
    assert math("I do not know.") is None and math("cut off in \\boxed{12") is None
    assert math("\\boxed{" + "1" * 5000 + "}") is None
    assert number("none") is None and text("  \n") is None


def test_an_answer_too_large_to_evaluate_votes_as_text():
    assert math("\\boxed{" + "9" * 400 + "}") == "9" * 400
    assert math("\\boxed{9^{9^{9}}}") == "9^{9^9}"


def test_the_mode_of_the_judge_is_the_mode_of_the_vote():
    strict = voting(RewardFunction("math", options={"mode": "strict"}))
    assert strict("perhaps it is 5") is None and math("perhaps it is 5") == "5"


def test_plain_votes():
    assert number("5 or 1,080") == "1080" and text(" a b\n") == "a b"
    assert voting(RewardFunction("reasoning_gym"))("x <answer> red </answer>") == "red"
    assert voting(RewardFunction("code")) is None and voting(RewardFunction("tests.tiny:vowels")) is None


def test_the_part_that_is_judged_is_the_part_that_votes():
    vote = voting(RewardFunction("math", after="ANSWER"))
    assert vote("perhaps 4 ANSWER 5") == "5" and vote("perhaps 4, cut off") is None
