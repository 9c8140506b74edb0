"""Accuracy statistics: avg@k, pass@k, maj@k, intervals that know what was sampled, paired comparison.

Everything starts from a matrix `correct` [problems, samples] of verdicts. **Problems are the sampling unit**:
the samples of one problem share its difficulty, so an interval that counted samples as independent would be
too narrow by up to the square root of their number. Nothing here draws from a training key or from numpy's
global generator; the two functions that need random numbers own a seed.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

PSEUDO_PROBLEMS = 3.0
"""a in `mean_interval`."""


class Interval(NamedTuple):
    """A confidence interval, both ends included."""

    low: float
    high: float


class Majority(NamedTuple):
    """`maj@k` of each problem [problems], and the share of votes that ended in a tie."""

    values: np.ndarray
    tied_fraction: float


class Comparison(NamedTuple):
    """What a second model gains over a first on the same problems, and whether it may be luck."""

    difference: float
    interval: Interval
    p_value: float
    problems: int


def _verdicts(correct: np.ndarray, name: str = "correct") -> np.ndarray:
    correct = np.asarray(correct)
    if correct.ndim != 2 or 0 in correct.shape:
        raise ValueError(f"{name} has shape {correct.shape}; expected a non-empty [problems, samples] matrix")
    if not np.isin(correct, (0, 1)).all():
        raise ValueError(
            f"{name} must hold verdicts, true or false; found {np.setdiff1d(correct, (0, 1))[0]!r}"
        )
    return correct.astype(bool)


def _check_k(k: int, samples: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k={k} is outside 1..{samples}, the samples of each problem")


def avg_at_k(correct: np.ndarray) -> np.ndarray:
    """Share of right samples per problem, [problems, k] -> [problems]; its mean is the accuracy."""
    return _verdicts(correct).mean(axis=1)


def pass_at_k(correct: np.ndarray, k: int) -> np.ndarray:
    """Unbiased probability that at least one of k samples is right, per problem.

    pass@k = 1 − C(n−c, k)/C(n, k), with c of the problem's n samples right: the share of k-subsets, drawn
    *without* replacement, that hold a right one (Chen et al. 2021, https://arxiv.org/abs/2107.03374, eq. 1).
    Drawing with replacement is biased: n = 4, c = 1, k = 4 would give .684 where one of the four is right.

    Args:
        correct: [problems, n] verdicts.
        k: samples a solver may try, at most n.

    Returns:
        [problems] values in [0, 1].
    """
    correct = _verdicts(correct)
    samples = correct.shape[1]
    _check_k(k, samples)
    misses = [math.comb(samples - right, k) / math.comb(samples, k) for right in range(samples + 1)]
    return 1.0 - np.asarray(misses)[correct.sum(axis=1)]


def maj_at_k(answers: Sequence[Sequence[str | None]], correct: np.ndarray, k: int) -> Majority:
    """Accuracy of the most frequent answer among k samples, per problem.

    Samples are cut into consecutive blocks of k, and a problem's value is the mean over its blocks. None is
    no answer and does not vote; a block in which nobody votes is wrong. **Ties share**: when several answers
    are most frequent, the value is the share of them that is right, which is what breaking the tie at random
    gives on average.

    Args:
        answers: [problems, samples] extracted answers, equal strings being one answer.
        correct: [problems, samples] verdicts.
        k: votes in a block, at most the number of samples.
    """
    correct = _verdicts(correct)
    samples = correct.shape[1]
    _check_k(k, samples)
    if [len(row) for row in answers] != [samples] * len(correct):
        raise ValueError(f"answers must be {correct.shape}, one per verdict")
    values, ties, blocks = np.zeros(len(correct)), 0, samples // k
    for problem, row in enumerate(answers):
        for start in range(0, blocks * k, k):
            block = slice(start, start + k)
            value, tied = _vote(row[block], correct[problem, block])
            values[problem] += value / blocks
            ties += tied
    return Majority(values, ties / (blocks * len(correct)))


def _vote(answers: Sequence[str | None], correct: np.ndarray) -> tuple[float, bool]:
    verdicts: dict[str, list[bool]] = {}
    for answer, verdict in zip(answers, correct, strict=True):
        if answer is not None:
            verdicts.setdefault(answer, []).append(bool(verdict))
    if not verdicts:
        return 0.0, False
    most = max(map(len, verdicts.values()))
    winners = [np.mean(votes) for votes in verdicts.values() if len(votes) == most]
    return float(np.mean(winners)), len(winners) > 1


def wilson_interval(proportion: float, count: float, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion of `count` independent trials (a real number is allowed)."""
    z = ndtri(0.5 + level / 2)
    centre = proportion + z * z / (2 * count)
    half = z * math.sqrt(proportion * (1 - proportion) / count + (z / (2 * count)) ** 2)
    scale = 1 + z * z / count
    # At 0 and 1 the end is exact; rounding must not move it outside [0, 1].
    return Interval(max(0.0, float((centre - half) / scale)), min(1.0, float((centre + half) / scale)))


def mean_interval(values: np.ndarray, *, draws: int = 1, level: float = 0.95) -> Interval:
    """Interval of the mean of per-problem values in [0, 1]: Wilson's, with the effective number of samples.

        n_eff = x̄(1−x̄) / Var(x̄),   n ≤ n_eff ≤ n·draws,   Var(x̄) = (Σ(x_p−x̄)² + a·x̄(1−x̄)) / (n(n+a))

    With one sample a problem this is Wilson's interval of n trials; with many, n_eff falls between the number
    of problems (each always or never solved) and that of samples (all equally hard). a = 3 more problems of
    Bernoulli spread stand for rare hard or easy ones a small set has not met. Simulated coverage at 95 %:
    93–97 % from 30 problems on when difficulties are spread (92–98 % where nearly every problem is always
    solved), more when they are equal; 92–99 % at 10.

    Args:
        values: [n] one value per problem, each the mean of up to `draws` yes-or-no draws.
        draws: independent draws behind each value (samples for avg@k, 1 for pass@n or a majority).
    """
    values = np.asarray(values, np.float64)
    count, mean = len(values), float(values.mean())
    bernoulli = mean * (1 - mean)
    spread = float(np.square(values - mean).sum()) + PSEUDO_PROBLEMS * bernoulli
    if bernoulli <= 0:  # all right or all wrong says nothing about spread: assume the worst
        return wilson_interval(round(mean), count, level=level)
    effective = bernoulli * count * (count + PSEUDO_PROBLEMS) / spread
    return wilson_interval(mean, min(max(effective, count), count * draws), level=level)


def bootstrap_interval(
    values: np.ndarray, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap of a mean over problems, for values outside [0, 1]; too narrow under ~30."""
    values = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(values), (resamples, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.5 - level / 2, 0.5 + level / 2])
    return Interval(float(low), float(high))


def compare(
    first: np.ndarray, second: np.ndarray, *, level: float = 0.95, permutations: int = 20_000, seed: int = 0
) -> Comparison:
    """The second model's accuracy minus the first's on the same problems, with a two-sided p-value.

    The p-value is of the sign-flip permutation test on per-problem differences: if the models were equal,
    each difference could as well have had the other sign. Exact up to 16 problems that differ, drawn with
    `seed` beyond. With one sample a problem it is McNemar's exact test. The interval adds half a problem
    won and half a problem lost (after Agresti and Min 2005), so that identical verdicts do not give an
    interval of no width.

    Args:
        first: [problems, samples] verdicts of the first model.
        second: [problems, samples'] verdicts of the second; numbers of samples may differ, problems may not.
    """
    first, second = _verdicts(first, "first"), _verdicts(second, "second")
    if len(first) != len(second):
        raise ValueError(
            f"first has {len(first)} problems and second {len(second)}; they must be the same problems"
        )
    differences = second.mean(axis=1) - first.mean(axis=1)
    count = len(differences)
    centre = differences.sum() / (count + 1)
    variance = (np.square(differences).sum() + 1) / (count + 1) - centre**2
    half = ndtri(0.5 + level / 2) * math.sqrt(variance / (count + 1))
    interval = Interval(max(-1.0, float(centre - half)), min(1.0, float(centre + half)))
    p_value = _sign_flip_p_value(differences, permutations, seed)
    return Comparison(float(differences.mean()), interval, p_value, count)


def _sign_flip_p_value(differences: np.ndarray, permutations: int, seed: int) -> float:
    differences = differences[differences != 0]
    observed = abs(differences.sum()) - 1e-9  # sums of equal terms in another order are ties
    if len(differences) <= 16:
        codes = np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences))
        return float((abs((1 - 2 * (codes & 1)) @ differences) >= observed).mean())
    if len(set(abs(differences))) == 1:  # one sample each: the sum is binomial
        return _mcnemar_p_value(int((differences > 0).sum()), len(differences))
    signs = np.random.default_rng(seed).integers(0, 2, (permutations, len(differences)), np.int8) * 2 - 1
    extreme = int((abs(signs @ differences) >= observed).sum())
    return (extreme + 1) / (permutations + 1)  # the observed signs are one of the permutations


def _mcnemar_p_value(wins: int, trials: int) -> float:
    tail = sum(math.comb(trials, lost) for lost in range(min(wins, trials - wins) + 1))
    return min(1.0, 2 * tail / 2**trials)
