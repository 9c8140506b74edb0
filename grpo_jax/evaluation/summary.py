"""Evaluation: sample every problem, judge every completion, say how good the model is and how sure that is.

The statistics are in `statistics`. Sampling and judging are functions passed in, so that nothing here can
touch the training state or its random keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grpo_jax.statistics import Interval, avg_at_k, mean_interval, pass_at_k
from grpo_jax.types import Problem


@dataclass(frozen=True)
class Evaluation:
    """One model's results on a set of problems, with every verdict behind the numbers."""

    accuracy: float
    """avg@k: mean over problems of the share of right samples."""
    interval: Interval
    """95 % interval of the accuracy, problems being the sampling unit."""
    pass_at: Mapping[int, float]
    """Unbiased pass@k for k = 1, 2, 4, … and the number of samples."""
    problems: int
    samples: int
    length_mean: float
    """Mean completion length, tokens."""
    truncated_fraction: float
    """Share of completions that hit the length limit."""
    unjudged: int
    """Completions the judge had no verdict on (None or NaN). They count as wrong."""
    correct: np.ndarray
    """[problems, samples] verdicts."""
    completions: tuple[Mapping[str, object], ...]
    """One row per completion: problem, sample, prompt, answer, completion, correct, length, truncated."""

    def summary(self) -> str:
        """One line for the console."""
        largest = max(self.pass_at)
        parts = [
            f"accuracy {self.accuracy:.1%} [{self.interval.low:.1%}, {self.interval.high:.1%}]",
            *([f"pass@{largest} {self.pass_at[largest]:.1%}"] if largest > 1 else []),
            f"{self.problems} problems x {self.samples} samples",
            f"length {self.length_mean:.1f} tokens",
            f"truncated {self.truncated_fraction:.1%}",
            *([f"{self.unjudged} completions could not be judged"] if self.unjudged else []),
        ]
        return ", ".join(parts)

    def metrics(self) -> dict[str, float]:
        """The numbers under the names the metric log uses."""
        return {
            "eval/accuracy": self.accuracy,
            "eval/accuracy_low": self.interval.low,
            "eval/accuracy_high": self.interval.high,
            **{f"eval/pass@{k}": value for k, value in self.pass_at.items()},
            "eval/length_mean": self.length_mean,
            "eval/truncated_fraction": self.truncated_fraction,
            "eval/unjudged_count": float(self.unjudged),
        }


def evaluate(
    problems: Sequence[Problem],
    *,
    generate: Callable[[Sequence[Problem], int], tuple[Sequence, Sequence, Sequence]],
    judge: Callable[[Problem, str], bool | float | None],
    samples: int,
) -> Evaluation:
    """Sample every problem `samples` times and judge each completion.

    Args:
        problems: what to solve.
        generate: (problems, samples) -> (texts, lengths, truncated), each [problems][samples].
        judge: (problem, text) -> True, or a score that is at least 1, for a right answer.
        samples: completions per problem.
    """
    if not problems:
        raise ValueError("problems is empty: there is nothing to evaluate")
    if samples < 1:
        raise ValueError(f"samples={samples}; expected at least 1")
    texts, lengths, truncated = generate(problems, samples)
    for name, table in (("texts", texts), ("lengths", lengths), ("truncated", truncated)):
        if len(table) != len(problems) or any(len(row) != samples for row in table):
            raise ValueError(f"generate returned {name} that are not [{len(problems)}][{samples}]")
    scores = [[judge(problem, text) for text in row] for problem, row in zip(problems, texts, strict=True)]
    return summarize(problems, texts=texts, lengths=lengths, truncated=truncated, scores=scores)


def summarize(
    problems: Sequence[Problem], *, texts: Sequence, lengths: Sequence, truncated: Sequence, scores: Sequence
) -> Evaluation:
    """The `Evaluation` of completions that are already judged; tables are [problems][samples]."""
    scores = np.asarray(scores, np.float64)  # None becomes NaN
    correct = np.nan_to_num(scores) >= 1
    lengths, truncated = np.asarray(lengths), np.asarray(truncated, bool)
    count, samples = correct.shape
    ks = sorted({2**i for i in range(samples.bit_length())} | {samples})
    rows = tuple(
        {
            "problem": i,
            "sample": j,
            "prompt": problems[i].prompt_text,
            "answer": problems[i].answer,
            "completion": texts[i][j],
            "correct": bool(correct[i, j]),
            "length": int(lengths[i, j]),
            "truncated": bool(truncated[i, j]),
        }
        for i in range(count)
        for j in range(samples)
    )
    values = avg_at_k(correct)
    return Evaluation(
        accuracy=float(values.mean()),
        interval=mean_interval(values, draws=samples),
        pass_at={k: float(pass_at_k(correct, k).mean()) for k in ks},
        problems=count,
        samples=samples,
        length_mean=float(lengths.mean()),
        truncated_fraction=float(truncated.mean()),
        unjudged=int(np.isnan(scores).sum()),
        correct=correct,
        completions=rows,
    )
