"""Accuracy by how difficult a problem is."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.statistics import avg_at_k, mean_interval

DIFFICULTY, BASELINES, OWN = "difficulty", "baseline's pass rate", "own pass rate"
MOST_LEVELS = 8
"""Difficulties of more values than this are put in four groups of about equal size."""
RATES = {"0": 0.0, "up to 1/4": 0.25, "up to 1/2": 0.5, "up to 3/4": 0.75, "below 1": 1 - 1e-9, "1": 1.0}
"""Groups of pass rates by their highest one."""


class Stratum(NamedTuple):
    """The problems of one difficulty."""

    label: str
    problems: int
    accuracy: float
    low: float
    high: float
    baseline: float | None
    """The baseline's accuracy on them."""


class Strata(NamedTuple):
    """Problems by difficulty, and what that is."""

    by: str
    """DIFFICULTY, BASELINES or OWN."""
    strata: tuple[Stratum, ...]


def stratify(
    correct: np.ndarray, difficulties: Sequence[float | None], baseline: np.ndarray | None = None
) -> Strata:
    """Accuracy by the difficulty that the problems state, else by the baseline's pass rate, else by the own one.

    By a measured pass rate problems regress to the mean: those a baseline never solved are on average a little easier
    than that, so what it failed on rises, and what it always solved falls, even between equal models. By the own rate
    accuracies only say how many problems are never, sometimes and always solved.

    Args:
        correct: [problems, samples] verdicts.
        difficulties: [problems], None where unknown.
        baseline: [problems, samples'] verdicts of another model on the same problems.
    """
    if len({value for value in difficulties if value is not None}) > 1:
        by, labels = DIFFICULTY, _levels(difficulties)
    else:
        by = OWN if baseline is None else BASELINES
        rates = avg_at_k(correct if baseline is None else baseline)
        labels = [next(label for label, high in RATES.items() if rate <= high) for rate in rates]
    order = sorted(set(labels), key=_position(difficulties, labels) if by == DIFFICULTY else [*RATES].index)
    return Strata(by, tuple(_stratum(label, np.array(labels) == label, correct, baseline) for label in order))


def _stratum(label: str, rows: np.ndarray, correct: np.ndarray, baseline: np.ndarray | None) -> Stratum:
    values = avg_at_k(correct[rows])
    low, high = mean_interval(values, draws=correct.shape[1])
    before = None if baseline is None else float(baseline[rows].mean())
    return Stratum(label, int(rows.sum()), float(values.mean()), low, high, before)


def _levels(difficulties: Sequence[float | None]) -> list[str]:
    """A label for each problem: its difficulty, or the range of the quarter it is in."""
    known = sorted(value for value in difficulties if value is not None)
    if len(set(known)) <= MOST_LEVELS:
        return ["unknown" if value is None else f"{value:g}" for value in difficulties]
    edges = sorted({float(np.quantile(known, q, method="higher")) for q in (0.25, 0.5, 0.75)})
    names = [f"{low:g} to below {high:g}" for low, high in pairwise([known[0], *edges])]
    names.append(f"{edges[-1]:g} to {known[-1]:g}")
    return ["unknown" if value is None else names[bisect_right(edges, value)] for value in difficulties]


def _position(difficulties: Sequence[float | None], labels: Sequence[str]) -> Callable[[str], Any]:
    """Sorts labels by the lowest difficulty that has them."""
    lowest: dict[str, float] = {}
    for value, label in zip(difficulties, labels, strict=True):
        lowest[label] = min(lowest.get(label, np.inf), np.inf if value is None else value)
    return lowest.__getitem__
