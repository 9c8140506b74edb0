"""Rewards for the form of a completion."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.config import RewardFunction
from grpo_jax.rewards import scoring
from grpo_jax.rewards.form import format_all, language, overlong, repetition, tags, thinking
from grpo_jax.types import Problem

PROBLEM = Problem("?", "1")


def test_format_matches_the_whole():
    texts = ["<a>x\ny</a>", "  <a></a>\n", "so <a>x</a>", "<a>x</a> and more", "<a>" + "x" * 200_000 + "</a>"]
    assert format_all([PROBLEM] * 5, texts, pattern="<a>.*</a>") == [1, 1, 0, 0, 0]


def test_a_pattern_that_backtracks_for_ever_is_no_match_and_holds_up_nobody():
    texts = ["a" * 20, "a" * 60 + "b", "a"]
    start = time.monotonic()
    assert format_all([PROBLEM] * 3, texts, pattern="(a+)+") == [1, 0, 1]
    assert time.monotonic() - start < 30


def test_a_wrong_pattern_is_an_error():
    with pytest.raises(ValueError, match="is not a regular expression"):
        format_all([PROBLEM], ["x"], pattern="(")


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("<think>a\n</think>\n\n<answer>b</answer>\n", 1),
        ("a</think><answer>b</answer>", 1),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think>b", 0),
        ("<think>a</think> so <answer>b</answer>", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0),
        ("<think>a<answer>b</answer></think>", 0),
        ("<think>a</think><answer>b", 0),
        ("", 0),
    ],
)
def test_tags(completion, value):
    assert tags(PROBLEM, completion) == value


@pytest.mark.parametrize(
    ("length", "value"), [(0, 0), (15, 0), (16, 0), (17, -0.25), (18, -0.5), (20, -1), (99, -1)]
)
def test_fault_23_overlong_shaping_in_tokens(length, value):
    assert overlong(PROBLEM, "x" * 1000, completion_length=length, max_length=20, buffer=4) == value


@pytest.mark.parametrize("buffer", [0, -1, 21])
def test_fault_23_a_buffer_that_cannot_be_is_an_error(buffer):
    with pytest.raises(ValueError, match=f"overlong: buffer is {buffer}"):
        overlong(PROBLEM, "x", completion_length=5, max_length=20, buffer=buffer)


def test_lengths_are_given_to_rewards_that_ask_for_them():
    options = {"max_length": 20, "buffer": 4}
    rewards = scoring.build(
        [RewardFunction("overlong", options=options, weight=0.5), RewardFunction("repetition")]
    )
    arguments = {
        "problems": [PROBLEM] * 2,
        "completions": ["x"] * 2,
        "rewards": rewards,
        "on_failure": "error",
    }
    assert scoring.score(**arguments, lengths=[10, 18]).total.tolist() == [0, -0.25]
    with pytest.raises(ValueError, match="'overlong' needs the number of tokens"):
        scoring.score(**arguments)


@pytest.mark.parametrize(
    ("completion", "value"),
    [("a b c d", 0), ("a b", 0), ("", 0), ("a b a b a b", -3 / 5), ("a " * 101, -99 / 100)],
)
def test_repetition(completion, value):
    assert repetition(PROBLEM, completion, n=2) == pytest.approx(value)


@given(st.text(max_size=200), st.integers(1, 5))
def test_repetition_is_bounded(text, n):
    assert -1 < repetition(PROBLEM, text, n=n) <= 0


@pytest.mark.parametrize(
    ("completion", "script", "value"),
    [
        ("the answer is 5", "latin", 1),
        ("ответ 5", "latin", 0),
        ("ответ \\frac{1}{2}", "cyrillic", 1),
        ("答案是 5", "cjk", 1),
        ("ответ is", "latin", 0),
        ("5 + 5", "latin", 1),
        ("\ud800\x00", "latin", 1),
    ],
)
def test_language(completion, script, value):
    assert language(PROBLEM, completion, script=script) == value


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>6*7</think>42", 1),
        ("6*7</think>\n42\n", 1),
        ("<think>6*7</think>", 0),
        ("<think></think>42", 0),
        ("</think>42", 0),
        ("42", 0),
        ("<think>6*7 = 42", 0),
        ("<think>a</think>b</think>42", 0),
        ("<think>a<think>b</think>42", 0),
        ("<think>a</think>42<think>", 0),
    ],
)
def test_thinking_is_closed_once_and_followed_by_an_answer(completion, reward):
    assert thinking(PROBLEM, completion) == reward
    assert thinking(PROBLEM, completion.replace("think>", "reason>"), tag="reason") == reward
