"""Held-out problems: none is trained on, whatever is added or written differently."""

import pytest

from grpo_jax.tasks.splitting import distinct, is_held_out, refuse_overlap, split
from grpo_jax.types import Message, Problem


def test_sides_are_disjoint_whole_and_near_the_fraction():
    problems = [Problem(f"{i}+1=", str(i + 1)) for i in range(4000)]
    sides = split(problems, 0.25)
    train, held_out = ({p.prompt for p in side} for side in (sides.train, sides.held_out))
    assert not train & held_out and train | held_out == {p.prompt for p in problems}
    assert abs(len(held_out) / 4000 - 0.25) < 0.03  # 4 standard deviations of a fair hash


def test_adding_problems_moves_none():
    few = split([Problem(f"{i}?", "x") for i in range(200)], 0.3)
    many = split([Problem(f"{i}?", "x") for i in range(400)], 0.3)
    assert {p.prompt for p in few.held_out} < {p.prompt for p in many.held_out}


def test_case_spacing_and_unicode_form_do_not_change_the_side():
    for i in range(200):
        assert is_held_out(f"What is {i}? é", 0.5) == is_held_out(f"  what\nIS {i}?  e\u0301", 0.5)


def test_fractions_are_nested():
    for i in range(300):
        assert is_held_out(str(i), 0.6) or not is_held_out(str(i), 0.3)


def test_repeated_prompts_keep_the_first():
    chat = (Message("user", "a"),)
    problems = [
        Problem("a", "1"),
        Problem("b", "2"),
        Problem("a", "3"),
        Problem(chat, "4"),
        Problem(chat, "5"),
    ]
    assert [p.answer for p in distinct(problems)] == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("count", "fraction", "says"),
    [(0, 0.1, "leave none to train on"), (3, 1.0, "less than 1"), (2, 1e-9, "none to evaluate on")],
)
def test_a_split_that_cannot_be_is_an_error(count, fraction, says):
    with pytest.raises(ValueError, match=says):
        split([Problem(str(i), "x") for i in range(count)], fraction)


def test_overlap_is_refused_and_shown():
    train = [Problem("How many?", "1", {"location": "train.jsonl:7"})]
    refuse_overlap(train, [Problem("How many more?", "1")])
    with pytest.raises(ValueError, match=r"1 held-out prompts .* train.jsonl:7 and test.jsonl:2: 'how  MANY"):
        refuse_overlap(train, [Problem("how  MANY? ", "2", {"location": "test.jsonl:2"})])
