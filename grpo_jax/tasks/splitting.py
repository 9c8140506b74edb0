"""Training and held-out problems that cannot overlap.

The side a problem falls on is a hash of its prompt alone. So it is the same on every host and in every run,
it does not move when problems are added, and two copies of a prompt can never be on different sides.
"""

import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from grpo_jax.types import Problem


@dataclass(frozen=True)
class Mixture:
    """Pools of training problems, as indices, and how often each is drawn from, relative to the others."""

    pools: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class TaskSplit:
    """Problems to train on and problems to evaluate on; no prompt is in both."""

    train: Sequence[Problem]
    held_out: Sequence[Problem]
    mixture: Mixture | None = None
    """How the training problems are drawn; None draws each once an epoch."""


def restrict(split: TaskSplit, kept: Sequence[int]) -> TaskSplit:
    """The split with only some of its training problems, in order, drawn as they were."""
    place = {old: new for new, old in enumerate(kept)}
    mixture = split.mixture
    if mixture is not None:
        pools = tuple(tuple(place[i] for i in pool if i in place) for pool in mixture.pools)
        mixture = Mixture(pools, mixture.weights)
    return TaskSplit([split.train[index] for index in kept], split.held_out, mixture)


def normalised(text: str) -> str:
    """Text with the differences removed that make no other question: case, spacing, Unicode form."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def is_held_out(prompt_text: str, fraction: float) -> bool:
    """Whether a prompt belongs to the held-out share."""
    digest = blake2b(normalised(prompt_text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def distinct(problems: Iterable[Problem]) -> list[Problem]:
    """The first problem of each prompt, in order."""
    first: dict[object, Problem] = {}
    for problem in problems:
        first.setdefault(problem.prompt, problem)
    return list(first.values())


def split(problems: Iterable[Problem], held_out_fraction: float) -> TaskSplit:
    """Distinct problems by the hash of their prompt."""
    if not 0 <= held_out_fraction < 1:
        raise ValueError(
            f"data.held_out_fraction is {held_out_fraction}, expected at least 0 and less than 1."
        )
    problems = distinct(problems)
    sides: tuple[list[Problem], list[Problem]] = ([], [])
    for problem in problems:
        sides[is_held_out(problem.prompt_text, held_out_fraction)].append(problem)
    train, held_out = sides
    if not train:
        raise ValueError(f"data: {len(problems)} distinct prompts leave none to train on.")
    if held_out_fraction and not held_out:
        raise ValueError(
            f"data.held_out_fraction {held_out_fraction} of {len(problems)} distinct prompts leaves none to "
            "evaluate on; raise it, name a held_out_path, or set it to 0."
        )
    return TaskSplit(train=train, held_out=held_out)


def two_sources(
    train: Sequence[Problem], held_out: Sequence[Problem], *, allow_overlap: bool = False
) -> TaskSplit:
    """Training and held-out problems that come apart already."""
    refuse_overlap(train, held_out, allow=allow_overlap)
    return TaskSplit(train=train, held_out=held_out)


def refuse_overlap(train: Iterable[Problem], held_out: Iterable[Problem], *, allow: bool = False) -> None:
    """Raise, or warn if it is allowed, if a prompt, up to case and spacing, is on both sides."""
    seen = {normalised(problem.prompt_text): problem for problem in train}
    shared = [p for p in held_out if normalised(p.prompt_text) in seen]
    if shared:
        twin = seen[normalised(shared[0].prompt_text)]
        where = [str(p.metadata.get("location", "?")) for p in (twin, shared[0])]
        message = (
            f"data: {len(shared)} held-out prompts are also training problems, the first at {where[0]} and "
            f"{where[1]}: {shorten(shared[0].prompt_text)!r}. Remove them from one of the files."
        )
        if not allow:
            raise ValueError(f"{message} Or set data.allow_overlap.")
        warnings.warn(message, stacklevel=2)


def shorten(text: str, limit: int = 200) -> str:
    """Text cut in the middle to about `limit` characters, for messages."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {text[-half:]}"
