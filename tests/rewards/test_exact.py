"""Exact numbers, and what is too large to evaluate."""

from fractions import Fraction

import pytest

from grpo_jax.rewards.exact import number, too_large


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-7", -7),
        ("1.50", "3/2"),
        (".5", "1/2"),
        ("2 1/3", "7/3"),
        (r"-1\frac{1}{2}", "-3/2"),
        ("-3/4", "-3/4"),
        (r"\frac{5}{-6}", "-5/6"),
        (r"-\frac{0.5}{2}", "-1/4"),
        (r"3\times 10^{-4}", "3/10000"),
        ("6e2", 600),
        ("1/0", None),
        ("x", None),
        ("1 2", None),
        (r"10^{99999999}", None),
        ("1e99999999", None),
        ("", None),
    ],
)
def test_numbers_are_exact(text, value):
    found = number(text)
    assert (found and found.value) == (None if value is None else Fraction(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9^{9^{9^{9}}}", "a tower"),
        (r"\frac{6^{(6^{(6^{(6^6)})}-4)}-1}{5}", "a tower"),
        ("9^(9^9)", "a tower"),
        ("(((10!)!)!)", "a factorial"),
        ("10!!", "a factorial"),
        ("100000!", "a factorial"),
        ("9^{99999}", "an exponent"),
        ("1" * 201, "digits"),
        ("{" * 25 + "}" * 25, "nested"),
        ("x+" * 600, "longer"),
    ],
)
def test_too_large_to_evaluate(text, reason):
    assert reason in too_large(text)


@pytest.mark.parametrize(
    "text",
    ["2^{2025}-1", "2^{2^{3}}", "e^{x^2}", "10!", "x^{100}", r"\frac{1}{3^{61}}", "1" * 200, r"3^{2n+1}"],
)
def test_ordinary_answers_are_not_too_large(text):
    assert too_large(text) is None
