"""The tables: the numbers are in them, the footnotes say what they mean, and the LaTeX is well formed."""

import re
from pathlib import Path

import pytest

from grpo_jax.evaluation.results import summarise
from grpo_jax.evaluation.table import Table
from grpo_jax.evaluation.tables import Results, p_value
from tests.evaluation.rows import rows, settings

CORRECT = [[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]]
WORSE = [[0, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
VOTES = [["7", "8", "9", None], ["1", "1", "2", "1"], ["5", "5", "6", None]]


def suite(name, correct=CORRECT, votes=VOTES, **options):
    return summarise(name, rows(correct, votes), settings(correct, votes=votes is not None), **options)


@pytest.fixture(scope="module")
def results():
    baseline = suite("sums_1", WORSE)
    return Results(
        model="runs/a_b, step 3",
        suites=(suite("sums_1", baseline=baseline.correct), suite("other", votes=None)),
        folder=Path("out"),
        baseline="runs/c",
        baselines={"sums_1": baseline},
        notes=("sums_1: 100 % of it.",),
    )


def test_text_has_every_number_in_columns(results):
    text = str(results)
    for part in (
        "runs/a_b, step 3: 4 samples a problem, temperature 1, seed 0",
        "33.3 [",
        "66.7 [",
        "44.4 [",
        "25.0 %",
        "+16.7 [",
        "sums_1, by baseline's pass rate",
        "other, by own pass rate",
        "sums_1: 100 % of it.",
    ):
        assert part in text, part
    table = text.split("\n\n")[1].splitlines()
    ends = {len(line.rstrip()) for line in (table[0], *table[2:4])}
    assert len(ends) == 1 and table[4].split() == ["mean", "33.3"]


def test_ties_and_intervals_are_explained_under_the_table(results):
    assert max(map(len, str(results).splitlines())) <= 100
    text = " ".join(str(results).split())
    assert "tied answers share: the share of them that is right counts" in text
    assert "problems are the sampling unit" in text and "sign-flip permutation test" in text
    assert "regress to the mean" in text


def test_latex_is_balanced_and_escaped(results):
    latex = results.latex()
    for name in ("table", "tabular"):
        assert latex.count(rf"\begin{{{name}}}") == latex.count(rf"\end{{{name}}}") == 4
    plain = re.sub(r"\\[{}&%#_$]", "", latex)
    assert plain.count("{") == plain.count("}") and "%" not in plain and "_" not in plain
    for block in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", latex, re.DOTALL):
        lines = [line for line in re.sub(r"\\[&%]", "", block[1]).splitlines() if line.endswith(r"\\")]
        assert {line.count("&") for line in lines} == {len(block[0]) - 1}
    assert r"sums\_1 & 3 & 33.3 [" in latex


def test_one_sample_needs_neither_pass_nor_majority():
    one = summarise("sums", rows([[1], [0]]), settings([[1], [0]]))
    text = str(Results(model="m", suites=(one,), folder=Path("out")))
    assert "avg@1" in text and "pass@" not in text and "maj@" not in text


def test_without_votes_there_is_no_majority():
    found = summarise("sums", rows(CORRECT), settings(CORRECT, votes=False))
    text = str(Results(model="m", suites=(found,), folder=Path("out")))
    assert "pass@4" in text and "maj@" not in text


def test_what_could_not_be_judged_is_in_the_footnotes():
    table = rows(CORRECT, VOTES)
    table[3] = table[3] | {"score": None}
    found = summarise("sums", table, settings(CORRECT))
    text = str(Results(model="m", suites=(found,), folder=Path("out")))
    assert "sums: the judge failed on 1 completions" in text


def test_special_characters_are_text_in_latex():
    latex = Table("50% of #1 & {x}^2 ~ \\n", ["a", "b"], [["$", "_"]]).latex()
    assert r"50\% of \#1 \& \{x\}\textasciicircum{}2 \textasciitilde{} \textbackslash{}n" in latex


def test_p_values_have_the_digits_that_matter():
    assert [p_value(p) for p in (0.5, 0.0314, 0.00049)] == ["0.500", "0.031", "< 0.001"]
