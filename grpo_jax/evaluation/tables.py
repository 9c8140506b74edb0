"""The results as a paper prints them: tables with intervals, in text and LaTeX, and what each number means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from grpo_jax.evaluation.results import Estimate, SuiteResult
from grpo_jax.evaluation.strata import BASELINES, OWN
from grpo_jax.evaluation.table import Table
from grpo_jax.rollout import Sampling
from grpo_jax.statistics import Comparison, compare

DRAWN = ("top_p", "top_k", "min_p", "repetition_penalty")
"""Settings of sampling that can be given in place of a run's, besides the temperature."""


@dataclass(frozen=True)
class Results:
    """What a model reached; printed, it is the tables."""

    model: str
    suites: tuple[SuiteResult, ...]
    folder: Path
    baseline: str = ""
    """The folder of another model's results on the same problems."""
    baselines: Mapping[str, SuiteResult] = field(default_factory=dict)
    """What the baseline reached, by suite."""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> SuiteResult:
        return next(suite for suite in self.suites if suite.name == name)

    @property
    def title(self) -> str:
        """The model and how it was sampled."""
        settings = self.suites[0].settings
        truncation = "".join(
            f", {name} {settings[name]:g}" for name in DRAWN if settings[name] != getattr(Sampling, name)
        )
        return (
            f"{self.model}: {settings['samples']} samples a problem, temperature {settings['temperature']:g}"
            f"{truncation}, seed {settings['seed']}"
        )

    @property
    def mean_accuracy(self) -> float:
        """The mean over suites."""
        return float(np.mean([suite.accuracy.value for suite in self.suites]))

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """By suite, our accuracy minus the baseline's; p-values are of the paired sign-flip test over problems."""
        return {name: compare(other.correct, self[name].correct) for name, other in self.baselines.items()}

    def __str__(self) -> str:
        return text(self)

    def latex(self) -> str:
        """The tables for the package booktabs."""
        return latex(self)

    def numbers(self) -> dict[str, Any]:
        """Everything but the verdicts, as JSON takes it."""
        return {
            "model": self.model,
            "mean_accuracy": self.mean_accuracy,
            "suites": [suite.numbers() for suite in self.suites],
            "baseline": self.baseline or None,
            "comparisons": {
                name: {**c._asdict(), "interval": c.interval._asdict()}
                for name, c in self.comparisons.items()
            },
            "notes": list(self.notes),
        }


def text(results: Results) -> str:
    """Everything, for a terminal or a file."""
    notes = [fill(note, 100, initial_indent="  ", subsequent_indent="    ") for note in footnotes(results)]
    return "\n\n".join([*(table.text() for table in tables(results)), "\n".join(notes)]) + "\n"


def latex(results: Results) -> str:
    """Everything, for a paper; the notes stand under the first table."""
    first, *rest = tables(results)
    return "\n\n".join([first.latex(footnotes(results)), *(table.latex() for table in rest)]) + "\n"


def tables(results: Results) -> list[Table]:
    """The accuracies, the comparison with the baseline if there is one, and each suite's strata."""
    compared = [comparison_table(results)] if results.baselines else []
    return [accuracy_table(results), *compared, *map(strata_table, results.suites)]


def accuracy_table(results: Results) -> Table:
    """One row a suite, and their mean."""
    k = results.suites[0].samples
    more = [*([f"pass@{k}"] if k > 1 else []), *([f"maj@{k}"] if has_majority(results) else [])]
    header = ["task", "problems", f"avg@{k}", *more, "tokens", "cut off"]
    rows = [
        [
            suite.name,
            str(suite.problems),
            estimate(suite.accuracy),
            *[estimate(suite.pass_at[k]), estimate(suite.maj_at.get(k))][: len(more)],
            f"{suite.length_mean:.0f}" if suite.length_mean >= 100 else f"{suite.length_mean:.1f}",
            f"{100 * suite.truncated_fraction:.1f} %",
        ]
        for suite in results.suites
    ]
    if len(rows) > 1:
        rows.append(["mean", "", f"{100 * results.mean_accuracy:.1f}", *[""] * (len(header) - 3)])
    return Table(results.title, header, rows)


def comparison_table(results: Results) -> Table:
    """What the model gains over the baseline on the same problems."""
    rows = [
        [
            name,
            str(c.problems),
            f"{100 * c.difference:+.1f} [{100 * c.interval.low:+.1f}, {100 * c.interval.high:+.1f}]",
            p_value(c.p_value),
        ]
        for name, c in results.comparisons.items()
    ]
    return Table(
        f"Against {results.baseline}, on the same problems", ["task", "problems", "avg difference", "p"], rows
    )


def strata_table(suite: SuiteResult) -> Table:
    """A suite's accuracy by difficulty; by its own pass rate, which is the accuracy, how many problems have it."""
    by, strata = suite.strata
    if by == OWN:
        rows = [[s.label, str(s.problems), f"{100 * s.problems / suite.problems:.1f}"] for s in strata]
        return Table(f"{suite.name}, by {by}", [by, "problems", "%"], rows)
    baseline = strata[0].baseline is not None
    rows = [
        [
            s.label,
            str(s.problems),
            estimate(Estimate(s.accuracy, s.low, s.high)),
            *([f"{100 * s.baseline:.1f}"] if s.baseline is not None else []),
        ]
        for s in strata
    ]
    header = [by, "problems", f"avg@{suite.samples}", *(["baseline"] if baseline else [])]
    return Table(f"{suite.name}, by {by}", header, rows)


def footnotes(results: Results) -> list[str]:
    """What the numbers mean, and what a reader must know of how they came about."""
    k = results.suites[0].samples
    notes = [
        f"Percent, with 95 % intervals in which problems are the sampling unit. avg@{k}: mean share of right samples."
    ]
    if k > 1:
        notes += [f"pass@{k}: at least one of {k} samples is right, unbiased."]
    if has_majority(results):
        notes += [
            f"maj@{k}: the most frequent answer of {k} is right; equal spellings of an answer are one, samples without "
            "an answer do not vote, and tied answers share: the share of them that is right counts.",
        ]
    notes += ["cut off: completions that hit the length limit."]
    if any(suite.strata.by == BASELINES for suite in results.suites):
        notes += [f"Problems grouped by the {BASELINES} regress to the mean, also between equal models."]
    if results.baselines:
        notes += ["p: two-sided sign-flip permutation test on per-problem differences."]
    notes += [
        f"{suite.name}: the judge failed on {suite.unjudged} completions, which count as wrong."
        for suite in results.suites
        if suite.unjudged
    ]
    return [*notes, *results.notes]


def has_majority(results: Results) -> bool:
    """Whether there is a vote among samples to report: several of them, with answers."""
    return results.suites[0].samples > 1 and any(suite.maj_at for suite in results.suites)


def estimate(value: Estimate | None) -> str:
    """78.6 [76.8, 80.3], in percent."""
    if value is None:
        return "–"
    return f"{100 * value.value:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def p_value(p: float) -> str:
    """To the digits that matter."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
