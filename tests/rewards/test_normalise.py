"""One spelling for an answer."""

import pytest

from grpo_jax.rewards.normalise import Answer, is_words, key, normalise


@pytest.mark.parametrize(
    ("raw", "text", "unit"),
    [
        (r"$\dfrac12$.", r"\frac{1}{2}", ""),
        ("½", "1/2", ""),
        ("2½", "2 1/2", ""),
        ("x²", "x^2", ""),
        ("√5", r"\sqrt{5}", ""),
        (r"\left( x+1 \right)^{2}", "( x+1 )^2", ""),
        ("1,204,337", "1204337", ""),
        (r"1{,}204{,}337", "1204337", ""),
        ("1,2", "1,2", ""),
        (r"\$1,250.50", "1250.50", ""),
        ("-$5", "-5", ""),
        (r"35\%", "35", "percent"),
        (r"45^{\circ}", "45", "degree"),
        (r"12\ \mathrm{cm}^2", "12", "cm^2"),
        ("12 square centimeters", "12", "cm^2"),
        ("90degrees", "90", "degree"),
        ("12 apples", "12", "apple"),
        ("3ab", "3ab", ""),
        ("5 million", r"5\times 10^{6}", ""),
        (r"5\text{ million dollars}", r"5\times 10^{6}", "dollar"),
        ("12 plus seven", "12 plus seven", ""),
        ("3 quarters", "3 quarters", ""),
        ("3m", "3m", ""),
        (r"\text{ (C) }", "C", ""),
        ("**73**", "73", ""),
        ("\u202e7\u200b", "7", ""),
        ("1\x002", "1 2", ""),
        ("\ud83d7", "?7", ""),
        (r"1 \text{ or } 2", "1, 2", ""),
        (r"\begin{pmatrix} 1 \\ 3\end{pmatrix}", r"\begin{pmatrix} 1 \\ 3\end{pmatrix}", ""),
        ("{{5}}", "5", ""),
        ("", "", ""),
    ],
)
def test_spellings(raw, text, unit):
    assert normalise(raw) == Answer(text, unit)


def test_spacing_counts_between_digits_only():
    assert key(Answer("2 1/3", "")) != key(Answer("21/3", ""))
    assert key(Answer("x + 1", "")) == key(Answer("x+1", ""))


def test_case_counts_in_formulas_only():
    assert key(Answer("Tuesday", "")) == key(Answer("tuesday", ""))
    assert key(Answer("X+1", "")) != key(Answer("x+1", ""))


@pytest.mark.parametrize(
    ("text", "words"),
    [("no solution", True), ("Evelyn", True), ("ab", False), ("x", False), ("12 apples", False)],
)
def test_words(text, words):
    assert is_words(text) is words
