"""Rewards that compare text and numbers."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.rewards.builtin import exact_match, last_number, number_match
from grpo_jax.types import Problem


def problem(answer):
    return Problem("?", answer)


@pytest.mark.parametrize(
    ("completion", "value"), [("122", 1), (" 122\n", 1), ("1 22", 0), ("", 0), ("122.0", 0)]
)
def test_exact_match(completion, value):
    assert exact_match(problem("122"), completion) == value


@pytest.mark.parametrize("gold", ["", "  "])
def test_fault_60_an_empty_answer_is_never_paid(gold):
    assert exact_match(problem(gold), "") is None
    with pytest.raises(ValueError, match="not a number"):
        number_match(problem(gold), "")


@pytest.mark.parametrize(
    ("answer", "completion", "value"),
    [
        ("18", "She makes 9 * 2 = $18.", 1),
        ("18", "18, or rather 19", 0),
        ("1,080", "the total is 1080", 1),
        ("1080", "$1,080.00", 1),
        ("50", "50%", 1),
        ("50%", "50", 1),
        ("0.5", "1/2", 1),
        ("3", "the ratio is 4/3", 0),
        ("-3", "x=-3", 1),
        ("3", "10-3", 1),
        ("3", "10 - 3", 1),
        ("-3", "\u22123", 1),
        ("12", "1,2", 0),
        ("100000", "1e5", 1),
        ("0.1", "0.1000000000000000055511151231257827", 0),
        ("100000000000000000001", "100000000000000000000", 0),
        ("7", "no number here", 0),
        ("7", "1/0", 0),
        ("3", "wait...3", 1),
    ],
)
def test_number_match(answer, completion, value):
    assert number_match(problem(answer), completion) == value


@pytest.mark.parametrize("gold", ["twelve", "3 apples", "1, 2", "1/0"])
def test_an_answer_that_is_no_number_is_an_error(gold):
    with pytest.raises(ValueError, match="is not a number"):
        number_match(problem(gold), "3")


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_any_number_is_itself_however_written(number, places):
    value = Fraction(number, 10**places)
    text = f"{number / 10**places:,.{places}f}"
    assert last_number(f"so 5 gives {text} in all") == value
    assert number_match(problem(text), f"= {text}") == 1


@pytest.mark.parametrize(
    "hostile",
    [
        "1" * 10**6,
        "1," * 10**6,
        "-" * 10**6,
        "1,111" * 10**5,
        "1/" * 10**6,
        " " * 10**6,
        "1e999999999",
        "9e999/9",
    ],
)
def test_hostile_text_is_read_in_bounded_time(hostile):
    start = time.process_time()
    assert number_match(problem("7"), hostile) == 0
    assert time.process_time() - start < 1
