r"""Structure and exact numbers, without evaluating anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.rewards.equivalence import same, split
from grpo_jax.rewards.normalise import normalise


class Asked(Exception):
    """The leaf function was called."""


def leaf(gold, answer):
    raise Asked(gold, answer)


def same_text(gold, answer):
    return same(normalise(gold), normalise(answer), leaf)


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"\{2,7,9\}", r"\{9,2,7\}", True),
        (r"\{2,7,9\}", r"\{2,7\}", False),
        (r"\{1,2\}", r"\{1,2,2\}", False),
        ("1, 2", r"\{2,1\}", True),
        ("(0.5,-3)", r"(\frac{1}{2}, -3)", True),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", "(1,2,3)", False),
        ("[2,5]", "(2,5)", False),
        ("[2,5)", r"2 \le x < 5", True),
        ("x > 3", "3 < x", True),
        ("x > 3", "y > 3", False),
        ("x > 3", "x < 3", False),
        (r"x \ge 3", "x > 3", False),
        (r"(-\infty,1)\cup(3,\infty)", "x<1 or x>3", True),
        (r"\pm 4", "4", False),
        (r"\pm 4", "-4, 4", True),
        ("5", "x=5", True),
        ("x=5", "5", True),
        ("x=5", "x = 6", False),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}", False),
        ("1:30", "12:30", False),
        (r"x \equiv 2 \pmod{5}", r"x \equiv 3 \pmod 5", False),
        ("213_4", "213_{4}", True),
        ("213_4", "213_5", False),
        ("C", "D", False),
        ("Tuesday", "Monday", False),
        ("5 km", "5 miles", False),
        ("5 km", "5", True),
        ("5", "5 months", True),
        ("5", "5 remaining apples", True),
        (r"50\%", "0.5", True),
        ("0.5", r"50\%", True),
        (r"50\%", "5000", False),
        ("1/3", "0.333333", True),
        ("1/3", "0.3333", False),
        ("1000000", "1000000.5", False),
        ("0.3333333", "0.3333334", False),
        ("2", "1 or 2 or 3", False),
        ("7", "🙂", False),
        ("0", "__import__('os').system('id')", False),
    ],
)
def test_structures(gold, answer, equal):
    assert same_text(gold, answer) is equal


@pytest.mark.parametrize(
    "pair", [(r"\sqrt{2}", "2"), ("y=2x+1", "2x-y+1=0"), ("3", "n=3k"), ("x>3", "-x<-3")]
)
def test_what_needs_algebra_is_asked_for(pair):
    with pytest.raises(Asked):
        same_text(*pair)


@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_fractions_agree_with_arithmetic(a, b):
    first, second = rf"\frac{{{a.numerator}}}{{{a.denominator}}}", f"{b.numerator}/{b.denominator}"
    assert same_text(first, second) is (a == b)
    assert same_text(first, f"{a.numerator}/{a.denominator}")


def test_split_leaves_brackets_whole():
    assert split("(1,2), {3,4}, [5,6)", ",") == ["(1,2)", "{3,4}", "[5,6)"]
    assert split("", ",") == [""]
