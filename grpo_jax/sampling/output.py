"""Completions on paper: as text to read, a table to compare, or JSON lines to keep."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grpo_jax.sampling.sampler import Completion


def text(groups: Iterable[Sequence[Completion]]) -> Iterator[str]:
    """A prompt and its completions, each with a line of numbers above it."""
    for group in groups:
        yield f"=== {group[0].prompt}"
        for completion in group:
            yield f"--- {_numbers(completion)}"
            yield completion.text


def _numbers(completion: Completion) -> str:
    end = "stopped" if completion.stopped else "cut off"
    parts = [f"{completion.tokens} tokens, {end}", f"log-prob {completion.log_prob:.2f}"]
    if completion.reward is not None:
        of = ", ".join(f"{name} {_number(value)}" for name, value in completion.rewards.items())
        parts.insert(
            0, f"reward {_number(completion.reward)}" + (f" ({of})" if len(completion.rewards) > 1 else "")
        )
    return ", ".join(parts)


def jsonl(groups: Iterable[Sequence[Completion]]) -> Iterator[str]:
    """One object per completion."""
    for group in groups:
        for completion in group:
            yield json.dumps(asdict(completion), ensure_ascii=False)


def table(groups: Iterable[Sequence[Completion]], console: Console) -> None:
    """One row per completion, once all are there."""
    drawn = Table("prompt", "completion", "reward", "tokens", "end", show_lines=True)
    for group in groups:
        for completion in group:
            drawn.add_row(
                Text(completion.prompt if completion.sample == 0 else ""),  # as it is: no markup, no emoji
                Text(completion.text),
                "" if completion.reward is None else _number(completion.reward),
                str(completion.tokens),
                "stopped" if completion.stopped else "cut off",
            )
    console.print(drawn)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
