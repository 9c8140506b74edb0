"""Strata: stated difficulties first, measured pass rates else."""

import numpy as np

from grpo_jax.evaluation.strata import BASELINES, DIFFICULTY, OWN, stratify

CORRECT = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]], bool)


def table(strata):
    return {s.label: (s.problems, s.accuracy, s.baseline) for s in strata.strata}


def test_stated_difficulties_in_order():
    found = stratify(CORRECT, [5, 5, 10, None])
    assert found.by == DIFFICULTY and list(table(found)) == ["5", "10", "unknown"]
    assert table(found) == {"5": (2, 0.625, None), "10": (1, 0, None), "unknown": (1, 0.75, None)}
    assert all(s.low <= s.accuracy <= s.high for s in found.strata)


def test_many_difficulties_become_quarters_that_hold_every_problem():
    difficulties = [i / 10 for i in range(40)]
    correct = np.random.default_rng(0).random((40, 2)) < np.linspace(1, 0, 40)[:, None]
    found = stratify(correct, difficulties)
    assert [s.label for s in found.strata] == ["0 to below 1", "1 to below 2", "2 to below 3", "3 to 3.9"]
    assert [s.problems for s in found.strata] == [10] * 4
    means = correct.mean(1).reshape(4, 10).mean(1)
    np.testing.assert_allclose([s.accuracy for s in found.strata], means)


def test_quarters_of_very_uneven_difficulties_lose_nothing():
    difficulties = [0.0] * 30 + list(range(1, 12))
    found = stratify(np.ones((41, 1), bool), difficulties)
    assert sum(s.problems for s in found.strata) == 41


def test_without_difficulties_the_own_pass_rate():
    found = stratify(CORRECT, [None] * 4)
    assert found.by == OWN
    assert table(found) == {
        "0": (1, 0, None),
        "up to 1/4": (1, 0.25, None),
        "up to 3/4": (1, 0.75, None),
        "1": (1, 1, None),
    }


def test_a_single_difficulty_says_nothing():
    assert stratify(CORRECT, [3, 3, 3, 3]).by == OWN


def test_the_baseline_says_how_difficult():
    baseline = np.array([[1, 0], [0, 0], [0, 0], [1, 1]], bool)
    found = stratify(CORRECT, [None] * 4, baseline)
    assert found.by == BASELINES
    assert table(found) == {"0": (2, 0.125, 0), "up to 1/2": (1, 1, 0.5), "1": (1, 0.75, 1)}
    assert stratify(CORRECT, [1, 2, 1, 2], baseline).strata[0].baseline == 0.25
