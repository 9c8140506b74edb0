"""Accuracy statistics against closed forms, brute force and simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.statistics import (
    avg_at_k,
    bootstrap_interval,
    compare,
    maj_at_k,
    mean_interval,
    pass_at_k,
    wilson_interval,
)

verdict_rows = st.lists(st.booleans(), min_size=1, max_size=7)


def test_fault_46_pass_at_k_draws_without_replacement():
    one_of_four = np.array([[True, False, False, False]])
    assert pass_at_k(one_of_four, 4) == [1.0]  # with replacement: 1 - (3/4)^4 = .684
    assert pass_at_k(one_of_four, 2) == [0.5]  # with replacement: .4375
    assert pass_at_k(one_of_four, 1) == [0.25]


@given(verdict_rows, st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(row, data):
    k = data.draw(st.integers(1, len(row)))
    subsets = [any(subset) for subset in itertools.combinations(row, k)]
    assert pass_at_k(np.array([row]), k)[0] == pytest.approx(np.mean(subsets), abs=1e-12)


@given(verdict_rows)
def test_pass_at_1_is_avg_at_k(row):
    np.testing.assert_allclose(pass_at_k(np.array([row]), 1), avg_at_k(np.array([row])), atol=1e-12)


def test_pass_at_k_is_right_with_many_samples():
    # C(1024, 512) overflows a float; the ratio does not: (512! 512!)/(1024! 0!) of one wrong subset.
    correct = np.arange(1024)[None] < 512
    assert pass_at_k(correct, 512)[0] == pytest.approx(1.0)
    assert pass_at_k(correct, 2)[0] == pytest.approx(1 - 512 * 511 / (1024 * 1023))


@pytest.mark.parametrize(
    ("answers", "verdicts", "value", "tied"),
    [
        (["7", "7", "8"], [1, 1, 0], 1.0, 0.0),
        (["8", "8", "7"], [0, 0, 1], 0.0, 0.0),
        (
            ["7", "8", "9"],
            [1, 0, 0],
            1 / 3,
            1.0,
        ),  # a three-way tie broken at random is right a third of the time
        (["7", "8", None], [1, 0, 0], 0.5, 1.0),
        ([None, None, "7"], [0, 0, 1], 1.0, 0.0),  # no answer has no vote
        ([None, None, None], [0, 0, 0], 0.0, 0.0),
    ],
)
def test_maj_at_k_by_hand(answers, verdicts, value, tied):
    majority = maj_at_k([answers], np.array([verdicts]), 3)
    assert majority.values[0] == pytest.approx(value)
    assert majority.tied_fraction == tied


def test_maj_at_k_averages_over_blocks_and_ignores_the_rest():
    majority = maj_at_k([["7", "7", "8", "8", "7"]], np.array([[1, 1, 0, 0, 1]]), 2)
    assert majority.values[0] == 0.5


@pytest.mark.parametrize("k", [1, 3, 4, 7])
def test_a_majority_between_two_answers_is_right_as_often_as_the_binomial_says(k):
    p = 0.6
    expected = sum(
        math.comb(k, right) * p**right * (1 - p) ** (k - right) * (1 if 2 * right > k else 0.5)
        for right in range(k + 1)
        if 2 * right >= k
    )
    outcomes = np.array(list(itertools.product([1, 0], repeat=k)))
    chances = np.prod(np.where(outcomes, p, 1 - p), axis=1)
    votes = [["right" if verdict else "wrong" for verdict in row] for row in outcomes]
    assert chances @ maj_at_k(votes, outcomes, k).values == pytest.approx(expected)


def test_maj_at_1_is_the_accuracy_of_the_samples():
    correct = np.array([[1, 0, 0, 1], [0, 0, 0, 1]])
    answers = [["a", "b", "c", "a"], ["d", "e", "f", "g"]]
    np.testing.assert_allclose(maj_at_k(answers, correct, 1).values, avg_at_k(correct))


def test_wilson_interval_matches_published_numbers():
    # Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for right, count, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson_interval(right / count, count) == pytest.approx((low, high), abs=5e-5)


@given(st.lists(st.booleans(), min_size=2, max_size=40))
def test_one_sample_a_problem_gives_wilsons_interval(row):
    assert mean_interval(np.array(row)) == pytest.approx(wilson_interval(np.mean(row), len(row)), abs=1e-9)


@given(st.integers(2, 40), st.integers(1, 16), st.integers(0, 1000))
def test_interval_lies_between_problems_and_samples_as_the_unit(problems, samples, seed):
    values = np.random.default_rng(seed).binomial(samples, 0.4, problems) / samples
    low, high = mean_interval(values, draws=samples)
    widest = wilson_interval(values.mean(), problems)
    narrowest = wilson_interval(values.mean(), problems * samples)
    slack = 1e-9
    assert widest.low - slack <= low <= narrowest.low + slack
    assert narrowest.high - slack <= high <= widest.high + slack
    assert 0 <= low <= values.mean() + slack
    assert values.mean() - slack <= high <= 1


def test_repeating_a_verdict_adds_no_certainty():
    single = np.array([1, 0, 1, 1, 0, 0, 1, 0], float)
    # Each problem always or never solved: 32 samples of it say what one says.
    assert mean_interval(single, draws=32) == pytest.approx(mean_interval(single, draws=1))


def coverage(difficulty, problems, samples, *, repeats=2500):
    """Share of simulated test sets whose interval holds the population accuracy."""
    rng = np.random.default_rng(problems * 1000 + samples)
    accuracies = difficulty(rng, (repeats, problems))
    truth = float(difficulty(np.random.default_rng(0), 1_000_000).mean())
    values = rng.binomial(samples, accuracies) / samples
    intervals = np.array([mean_interval(row, draws=samples) for row in values])
    return np.mean((intervals[:, 0] <= truth) & (truth <= intervals[:, 1]))


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.3), (2.0, 2.0), (0.2, 1.8)], ids=["even", "middling", "hard"])
@pytest.mark.parametrize(("problems", "samples"), [(30, 4), (64, 8), (256, 4), (100, 32)])
def test_interval_covers_the_truth_nineteen_times_in_twenty(a, b, problems, samples):
    # 2500 repeats give a standard error of .4 points.
    assert 0.93 <= coverage(lambda rng, size: rng.beta(a, b, size), problems, samples) <= 0.97


@pytest.mark.parametrize(("problems", "samples"), [(30, 4), (64, 8), (256, 4), (100, 32)])
def test_where_nearly_everything_is_always_solved_the_interval_is_a_little_off(problems, samples):
    assert 0.92 <= coverage(lambda rng, size: rng.beta(1.9, 0.1, size), problems, samples) <= 0.98


@pytest.mark.parametrize(("a", "b"), [(2.0, 2.0), (0.2, 1.8), (0.5, 9.5)])
def test_a_small_set_gives_a_cautious_interval(a, b):
    assert coverage(lambda rng, size: rng.beta(a, b, size), 10, 4) >= 0.93


@given(st.integers(1, 50), st.integers(1, 8))
def test_all_right_is_not_certainty(problems, samples):
    low, high = mean_interval(np.ones(problems), draws=samples)
    assert high == pytest.approx(1)
    assert low == pytest.approx(wilson_interval(1.0, problems).low)


def test_bootstrap_interval_has_the_width_theory_gives_and_its_own_seed():
    values = np.random.default_rng(1).normal(50, 10, 400)
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    low, high = bootstrap_interval(values)
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert (low, high) == bootstrap_interval(values)


@given(st.integers(0, 30), st.integers(0, 30))
def test_comparison_of_single_samples_is_mcnemars_exact_test(wins, losses):
    first = np.array([[0]] * wins + [[1]] * losses + [[1]] * 3)
    second = np.array([[1]] * wins + [[0]] * losses + [[1]] * 3)
    flips = wins + losses
    tail = sum(math.comb(flips, i) for i in range(min(wins, losses) + 1)) / 2**flips
    result = compare(first, second)
    assert result.p_value == pytest.approx(min(1.0, 2 * tail))
    assert result.difference == pytest.approx((wins - losses) / (flips + 3))


@pytest.mark.parametrize("problems", [16, 17], ids=["all", "sampled"])
def test_p_value_is_the_share_of_sign_flips_as_extreme(problems):
    rng = np.random.default_rng(3)
    first, second = rng.random((problems, 64)) < 0.4, rng.random((problems, 61)) < 0.42
    differences = second.mean(1) - first.mean(1)
    assert (differences != 0).all()
    signs = np.array(list(itertools.product([1, -1], repeat=problems)))
    share = np.mean(abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert 0.2 < share < 0.5
    assert compare(first, second).p_value == pytest.approx(share, abs=1e-9 if problems == 16 else 0.01)


def test_comparison_is_fair_when_models_are_equal_and_sure_when_they_are_not():
    rng = np.random.default_rng(0)
    difficulty = rng.beta(0.5, 0.5, (200, 60, 1))
    first, second = (rng.random((200, 60, 4)) < difficulty for _ in range(2))
    results = [compare(a, b, permutations=500) for a, b in zip(first, second, strict=True)]
    assert np.mean([r.p_value <= 0.05 for r in results]) <= 0.09
    assert 0.91 <= np.mean([r.interval.low <= 0 <= r.interval.high for r in results]) <= 0.99
    assert compare(np.zeros((60, 4)), np.ones((60, 4))).p_value < 1e-3


def test_comparison_of_identical_verdicts_is_no_proof_of_equality():
    same = np.array([[1, 0], [1, 1], [0, 0]])
    result = compare(same, same)
    assert (result.difference, result.p_value) == (0, 1)
    assert result.interval.low < 0 < result.interval.high


def test_wrong_shapes_and_values_are_named():
    with pytest.raises(ValueError, match=r"k=5 is outside 1\.\.4"):
        pass_at_k(np.ones((2, 4)), 5)
    with pytest.raises(ValueError, match="correct has shape"):
        avg_at_k(np.ones(4))
    with pytest.raises(ValueError, match=r"found .*0\.5"):
        avg_at_k(np.array([[0.5, 1]]))
    with pytest.raises(ValueError, match="the same problems"):
        compare(np.ones((2, 4)), np.ones((3, 4)))
