"""Rewards for the form of a completion: tags, a pattern, length in tokens, repetition, language."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from grpo_jax.rewards.pool import Limits, OutOfBounds, Pool
from grpo_jax.types import Problem

MAX_CHARACTERS = 100_000
"""A longer completion matches no pattern."""
CHUNK = 64
"""Completions that a worker matches in one job."""


def format_all(problems: Sequence[Problem], completions: Sequence[str], *, pattern: str) -> list[float]:
    """1 if a completion, white space around it aside, matches the whole of a regular expression.

    "." matches line ends too. The matching is done in workers with a time limit, because a pattern with
    nested repetition, such as (a+)+, can take for ever on what a model writes; that counts as no match.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from None
    texts = [completion.strip() for completion in completions]
    chunks = [(pattern, texts[i : i + CHUNK]) for i in range(0, len(texts), CHUNK)]
    matched: list[float] = []
    for (_, chunk), result in zip(chunks, _workers().map(_matches, chunks), strict=True):
        if isinstance(result, OutOfBounds):  # one of them: ask for each alone
            alone = _workers().map(_matches, [(pattern, [text]) for text in chunk])
            result = [False if isinstance(one, OutOfBounds) else one[0] for one in alone]
        matched += map(float, result)
    return matched


def tags(problem: Problem, completion: str, *, names: str = "think,answer") -> float:
    """1 if the completion is these tags in this order, each once, and nothing outside them.

    The first may be left open at its start, as chat templates that begin the completion inside it do.
    """
    rest = completion.strip()
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted and not rest.startswith(f"<{wanted[0]}>"):
        rest = f"<{wanted[0]}>{rest}"
    for name in wanted:
        opening, closing = f"<{name}>", f"</{name}>"
        if rest.count(opening) != 1 or rest.count(closing) != 1 or not rest.startswith(opening):
            return 0.0
        rest = rest.partition(closing)[2].lstrip()
    return float(not rest)


def thinking(problem: Problem, completion: str, *, tag: str = "think") -> float:
    """1 if the completion is reasoning, closed by </think> once, and then an answer.

    The opening tag may be missing, as where the chat template writes it. What is in either part does not matter here:
    give the reward that judges the answer `after="</think>"`.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    reasoning, closed, answer = completion.strip().removeprefix(opening).partition(closing)
    tags_left = any(mark in part for mark in (opening, closing) for part in (reasoning, answer))
    return float(bool(closed and reasoning.strip() and answer.strip()) and not tags_left)


def overlong(
    problem: Problem,
    completion: str,
    *,
    completion_length: int,
    max_length: int,
    buffer: int,
    penalty: float = 1.0,
) -> float:
    """0 up to max_length − buffer tokens, then falling evenly to −penalty at max_length, and no lower.

        −penalty · clip((length − (max_length − buffer)) / buffer, 0, 1)

    Soft overlong punishment: Yu et al., "DAPO", https://arxiv.org/abs/2503.14476, eq. 13. Lengths are in
    tokens, the stop token included.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"overlong: buffer is {buffer}, expected 1 to max_length ({max_length})")
    excess = (completion_length - (max_length - buffer)) / buffer
    return -penalty * min(max(excess, 0.0), 1.0)


def repetition(problem: Problem, completion: str, *, n: int = 4, penalty: float = 1.0) -> float:
    """−penalty times the share of runs of n words that were there before; 0 for a text of fewer words."""
    if n < 1:
        raise ValueError(f"repetition: n is {n}, expected at least 1")
    words = completion.split()
    runs = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return -penalty * (1 - len(set(runs)) / len(runs)) if runs else 0.0


def language(problem: Problem, completion: str, *, script: str = "LATIN", share: float = 0.9) -> float:
    """1 if at least this share of the letters is of a script, as Unicode names it; 1 if there are none.

    LaTeX commands do not count, since they are Latin in every language.
    """
    letters = [c for c in re.sub(r"\\[A-Za-z]+", "", completion) if c.isalpha()]
    inside = sum(_script(c) == script.upper() for c in letters)
    return float(not letters or inside >= share * len(letters))


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    compiled = re.compile(pattern, re.DOTALL)
    return [len(text) <= MAX_CHARACTERS and compiled.fullmatch(text) is not None for text in texts]


@cache
def _workers() -> Pool:
    return Pool(limits=Limits(cpu_seconds=1.0))
