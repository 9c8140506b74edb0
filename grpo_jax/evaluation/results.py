"""From judged completions to numbers with intervals; nothing but the rows and settings of a ledger is needed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.evaluation.ledger import Row, read_settings
from grpo_jax.evaluation.strata import Strata, stratify
from grpo_jax.statistics import avg_at_k, maj_at_k, mean_interval, pass_at_k
from grpo_jax.tasks.splitting import shorten
from grpo_jax.training.records import read_rows

RIGHT = "\0right"
"""What samples that are right vote for: however they are written, the judge calls each the reference's equal."""


class Estimate(NamedTuple):
    """A mean over problems, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SuiteResult:
    """What a model reached on one suite."""

    name: str
    settings: Mapping[str, Any]
    problems: int
    samples: int
    accuracy: Estimate
    """avg@k, k being the samples: the mean over problems of the share of right samples."""
    pass_at: Mapping[int, Estimate]
    """Unbiased pass@k by k."""
    maj_at: Mapping[int, Estimate]
    """maj@k by k; empty if the judge extracts no answer to vote with."""
    tied_fraction: Mapping[int, float]
    """Share of the votes of maj@k that ended in a tie, by k."""
    length_mean: float
    """Mean completion length, tokens."""
    truncated_fraction: float
    """Share of completions that hit the length limit."""
    unjudged: int
    """Completions the judge failed on. They count as wrong."""
    strata: Strata
    correct: np.ndarray
    """[problems, samples] verdicts."""
    questions: tuple[tuple[str, str], ...]
    """(prompt, reference answer) of each problem."""

    def numbers(self) -> dict[str, Any]:
        """Everything but the verdicts, as JSON takes it."""
        kept = {name: value for name, value in vars(self).items() if name not in ("correct", "questions")}
        return {
            **kept,
            "accuracy": self.accuracy._asdict(),
            "pass_at": {str(k): estimate._asdict() for k, estimate in self.pass_at.items()},
            "maj_at": {str(k): estimate._asdict() for k, estimate in self.maj_at.items()},
            "tied_fraction": {str(k): share for k, share in self.tied_fraction.items()},
            "strata": {"by": self.strata.by, "strata": [s._asdict() for s in self.strata.strata]},
        }


def summarise(
    name: str, rows: Sequence[Row], settings: Mapping[str, Any], *, baseline: np.ndarray | None = None
) -> SuiteResult:
    """The numbers of a suite whose completions are all judged.

    maj@k: the most frequent answer of k samples, spelled in one way (`rewards.votes`), right ones being one answer. If
    several are most frequent, the share of them that is right counts, which is what a draw among them gives on
    average. A sample without an answer does not vote. The mean is over consecutive blocks of k samples.

    Args:
        name: of the suite.
        rows: the ledger's, by problem and sample.
        settings: the ledger's.
        baseline: [problems, samples'] verdicts of another model, for strata where the problems have no difficulty.
    """
    shape = (settings["problems"], settings["samples"])
    if [(row["problem"], row["sample"]) for row in rows] != list(np.ndindex(*shape)):
        raise ValueError(
            f"{name}: {len(rows)} of {math.prod(shape)} completions are judged; finish that evaluation first"
        )
    correct = np.array([row["correct"] for row in rows]).reshape(shape)
    ks = sorted({2**i for i in range(shape[1].bit_length())} | {shape[1]})
    firsts = rows[:: shape[1]]
    majorities = {k: maj_at_k(_votes(rows, shape), correct, k) for k in ks if settings["votes"]}
    return SuiteResult(
        name=name,
        settings=settings,
        problems=shape[0],
        samples=shape[1],
        accuracy=_estimate(avg_at_k(correct), draws=shape[1]),
        # A value for k samples rests on as many independent draws as there are disjoint blocks of k.
        pass_at={k: _estimate(pass_at_k(correct, k), draws=shape[1] // k) for k in ks},
        maj_at={k: _estimate(m.values, draws=shape[1] // k) for k, m in majorities.items()},
        tied_fraction={k: m.tied_fraction for k, m in majorities.items()},
        length_mean=float(np.mean([row["length"] for row in rows])),
        truncated_fraction=float(np.mean([row["truncated"] for row in rows])),
        unjudged=sum(row["score"] is None for row in rows),
        strata=stratify(correct, [row.get("difficulty") for row in firsts], baseline),
        correct=correct,
        questions=tuple((row["prompt"], row["answer"]) for row in firsts),
    )


def _estimate(values: np.ndarray, *, draws: int) -> Estimate:
    return Estimate(float(values.mean()), *mean_interval(values, draws=draws))


def _votes(rows: Sequence[Row], shape: tuple[int, int]) -> list[list[str | None]]:
    votes = [RIGHT if row["correct"] else row["extracted"] for row in rows]
    return [votes[i : i + shape[1]] for i in range(0, len(votes), shape[1])]


def read_suite(folder: Path, name: str) -> SuiteResult:
    """What is in a folder that an evaluation wrote.

    Raises:
        ValueError: the folder has no such suite, or its evaluation is not finished.
    """
    if not (folder / name).is_dir():
        there = ", ".join(sorted(path.parent.name for path in folder.glob("*/settings.json")))
        raise ValueError(f"{folder} holds no results of {name}; it holds {there or 'none'}")
    rows = read_rows(folder / name / "completions.jsonl")
    rows.sort(key=lambda row: (row["problem"], row["sample"]))
    return summarise(name, rows, read_settings(folder / name))


def check_paired(
    ours: Iterable[tuple[str, str]], baseline: Iterable[tuple[str, str]], *, name: str, folder: Path
) -> None:
    """Raises unless both are the same (prompt, answer) pairs in the same order, which a paired comparison needs."""
    ours, baseline = list(ours), list(baseline)
    if len(ours) != len(baseline):
        raise ValueError(
            f"baseline: {name} has {len(baseline)} problems in {folder} and {len(ours)} here; "
            "a paired comparison needs the same problems"
        )
    for i, (mine, theirs) in enumerate(zip(ours, baseline, strict=True)):
        if mine != theirs:
            raise ValueError(
                f"baseline: problem {i} of {name} is {shorten(theirs[0])!r} in {folder} and "
                f"{shorten(mine[0])!r} here; a paired comparison needs the same problems"
            )
