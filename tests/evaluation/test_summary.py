"""Evaluation with a scripted model: the numbers, the summary line, and what it must not touch."""

import numpy as np
import pytest

from grpo_jax.evaluation import evaluate
from grpo_jax.types import Problem

PROBLEMS = [Problem(prompt="1+1=", answer="2"), Problem(prompt="2+3=", answer="5")]
TEXTS = [["2", "2", "3", "4"], ["5", "6", "6", "6"]]


def scripted(texts):
    def generate(problems, samples):
        assert len(problems) == len(texts)
        return texts, [[len(t) + 1 for t in row] for row in texts], [[t == "6" for t in row] for row in texts]

    return generate


def judge(problem, text):
    return text == problem.answer


def test_numbers_a_person_can_check():
    result = evaluate(PROBLEMS, generate=scripted(TEXTS), judge=judge, samples=4)
    assert result.accuracy == (2 / 4 + 1 / 4) / 2
    assert result.pass_at == pytest.approx({1: 0.375, 2: (5 / 6 + 1 / 2) / 2, 4: 1.0})
    assert (result.problems, result.samples, result.unjudged) == (2, 4, 0)
    assert (result.length_mean, result.truncated_fraction) == (2.0, 3 / 8)
    assert result.interval.low < 0.375 < result.interval.high
    np.testing.assert_array_equal(result.correct, [[1, 1, 0, 0], [1, 0, 0, 0]])
    assert result.completions[4] == {
        "problem": 1,
        "sample": 0,
        "prompt": "2+3=",
        "answer": "5",
        "completion": "5",
        "correct": True,
        "length": 2,
        "truncated": False,
    }


def test_summary_is_one_line_with_the_numbers():
    result = evaluate(PROBLEMS, generate=scripted(TEXTS), judge=judge, samples=4)
    summary = result.summary()
    assert "\n" not in summary
    for part in ("accuracy 37.5% [", "pass@4 100.0%", "2 problems x 4 samples", "truncated 37.5%"):
        assert part in summary
    assert "judged" not in summary


def test_metrics_use_the_names_of_the_log():
    metrics = evaluate(PROBLEMS, generate=scripted(TEXTS), judge=judge, samples=4).metrics()
    assert set(metrics) == {
        "eval/accuracy",
        "eval/accuracy_low",
        "eval/accuracy_high",
        "eval/pass@1",
        "eval/pass@2",
        "eval/pass@4",
        "eval/length_mean",
        "eval/truncated_fraction",
        "eval/unjudged_count",
    }


def test_three_samples_give_pass_at_1_2_and_3():
    texts = [row[:3] for row in TEXTS]
    result = evaluate(PROBLEMS, generate=scripted(texts), judge=judge, samples=3)
    assert list(result.pass_at) == [1, 2, 3]


def test_a_score_counts_as_right_from_one_on_and_no_verdict_is_counted():
    scores = {"2": 1.0, "3": 0.99, "4": None, "5": 2.0, "6": float("nan")}
    result = evaluate(PROBLEMS, generate=scripted(TEXTS), judge=lambda _, text: scores[text], samples=4)
    np.testing.assert_array_equal(result.correct, [[1, 1, 0, 0], [1, 0, 0, 0]])
    assert result.unjudged == 4
    assert "4 completions could not be judged" in result.summary()


def test_evaluating_leaves_the_global_generator_alone():
    np.random.seed(0)
    expected = np.random.RandomState(0).random()
    evaluate(PROBLEMS, generate=scripted(TEXTS), judge=judge, samples=4)
    assert np.random.random() == expected


@pytest.mark.parametrize(
    ("problems", "samples", "message"),
    [
        ([], 4, "problems is empty"),
        (PROBLEMS, 0, "samples=0"),
        (PROBLEMS, 3, r"texts that are not \[2\]\[3\]"),
    ],
)
def test_wrong_input_is_named(problems, samples, message):
    with pytest.raises(ValueError, match=message):
        evaluate(problems, generate=scripted(TEXTS[: len(problems)]), judge=judge, samples=samples)
