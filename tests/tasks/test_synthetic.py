"""Arithmetic problems: right answers, carries where asked for, the same ones every time."""

import pytest

from grpo_jax.config import ArithmeticData
from grpo_jax.tasks import build
from grpo_jax.tasks.synthetic import carries


@pytest.mark.parametrize(
    ("a", "b", "operation", "columns"),
    [
        (12, 34, "+", 0),
        (37, 85, "+", 2),
        (95, 5, "+", 2),
        (999, 1, "+", 3),
        (85, 37, "-", 1),
        (100, 1, "-", 2),
    ],
)
def test_counts_carries(a, b, operation, columns):
    assert carries(a, b, operation) == columns


def test_answers_are_right_and_every_sum_carries():
    sides = build(ArithmeticData(operations=("+", "-"), max_digits=3, carries="required", size=3000))
    problems = [*sides.train, *sides.held_out]
    for problem in problems:
        a, b = map(int, problem.prompt[:-1].replace("-", "+").split("+"))
        operation = problem.metadata["operation"]
        assert int(problem.answer) == (a + b if operation == "+" else a - b) >= 0
        assert carries(a, b, operation) == problem.metadata["carries"] >= 1
    assert {p.metadata["operation"] for p in problems} == {"+", "-"}


def test_any_carries_includes_sums_without():
    sides = build(ArithmeticData(size=500))
    assert {p.metadata["carries"] for p in sides.train} >= {0, 1, 2}


def test_sums_of_several_numbers_in_a_chat_of_the_readers_wording():
    data = ArithmeticData(
        operations=("+", "*"),
        max_digits=1,
        max_terms=3,
        size=100_000,
        prompt="{question} = ?",
        system_prompt="Be brief.",
    )
    sides = build(data)
    problems = [*sides.train, *sides.held_out]
    assert len(problems) == 100 + 1000 + 100
    for problem in problems:
        system, user = problem.prompt
        assert system == ("system", "Be brief.") and user.role == "user" and user.content.endswith(" = ?")
        numbers = list(map(int, user.content.removesuffix(" = ?").replace("*", "+").split("+")))
        if problem.metadata["operation"] == "+":
            assert int(problem.answer) == sum(numbers)
        else:
            assert int(problem.answer) == numbers[0] * numbers[1] and len(numbers) == 2
    (sum_of_nines,) = (p for p in problems if p.prompt[1].content == "9+9+9 = ?")
    assert sum_of_nines.metadata["carries"] == 2


def test_is_the_same_every_time():
    assert build(ArithmeticData(size=100)) == build(ArithmeticData(size=100))


@pytest.mark.parametrize(
    ("field", "data"),
    [
        ("data.size", ArithmeticData(size=0)),
        ("data.max_digits", ArithmeticData(max_digits=0)),
        ("data.operations", ArithmeticData(operations=("^",))),  # type: ignore[arg-type]
        ("data.carries", ArithmeticData(operations=("-",), max_digits=1, carries="required")),
        ("data.max_terms", ArithmeticData(max_terms=1)),
        ("data.prompt", ArithmeticData(prompt="add up")),
    ],
)
def test_impossible_settings_name_the_field(field, data):
    with pytest.raises(ValueError, match=field):
        build(data)
