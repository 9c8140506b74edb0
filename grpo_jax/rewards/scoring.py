"""Every completion judged by every reward, and what an exception, a NaN or a None means.

A sample that a reward could not judge is an error that shows it, or counts as unscored: it then leaves its
group's statistics, because a failure counted as 0 would teach the model that its answer was wrong.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from grpo_jax.config import RewardFunction
from grpo_jax.resolve import resolve
from grpo_jax.rewards.builtin import exact_match, format, number_match
from grpo_jax.rewards.math import math_all
from grpo_jax.rewards.reasoning_gym import reasoning_gym
from grpo_jax.tasks.splitting import shorten
from grpo_jax.types import Problem

Reward = Callable[[Problem, str], float | None]


@dataclass(frozen=True)
class Batched:
    """A reward that is called once with all problems and completions, because it shares them among workers.

    `function(problems, completions, **options)` returns as many numbers; an exception in place of a number
    says that this sample could not be judged.
    """

    function: Callable[..., Sequence[float | Exception | None]]


BUILTINS: dict[str, Callable[..., float | None] | Batched] = {
    "exact_match": exact_match,
    "number_match": number_match,
    "format": format,
    "reasoning_gym": reasoning_gym,
    "math": Batched(math_all),
}


class Scores(NamedTuple):
    """What the rewards say of N completions."""

    rewards: np.ndarray
    """[N, K] float32, NaN where a reward could not judge."""
    total: np.ndarray
    """[N] float32, the weighted sum; 0 where unscored."""
    scored: np.ndarray
    """[N] bool, whether every reward judged the sample."""
    failures: tuple[str, ...]
    """One message per (completion, reward) that could not be judged."""


@dataclass(frozen=True)
class WeightedReward:
    """A reward with its options bound, its name for the logs, and its factor in the sum."""

    name: str
    function: Reward | Batched
    weight: float


def build(functions: Sequence[RewardFunction]) -> tuple[WeightedReward, ...]:
    """The rewards a config names; wrong names and options are errors here, before anything runs."""
    if not functions:
        raise ValueError("reward.functions is empty, expected at least one reward.")
    built: list[WeightedReward] = []
    for described in functions:
        if not math.isfinite(described.weight):
            raise ValueError(f"reward.functions: the weight of {described.name!r} is {described.weight}.")
        function = resolve(described.name, BUILTINS, "reward.functions")
        name = described.name.rpartition(":")[2]
        while name in (reward.name for reward in built):
            name += "_"
        bound = _bind(function, described.name, described.options)
        built.append(WeightedReward(name=name, function=bound, weight=described.weight))
    return tuple(built)


def score(
    *,
    problems: Sequence[Problem],
    completions: Sequence[str],
    rewards: Sequence[WeightedReward],
    on_failure: Literal["error", "unscored"],
) -> Scores:
    """Judge completion n against problem n with every reward."""
    if len(problems) != len(completions):
        raise ValueError(f"score: {len(problems)} problems but {len(completions)} completions.")
    values = np.full((len(completions), len(rewards)), np.nan, np.float32)
    failures = []
    for k, reward in enumerate(rewards):
        for n, value in enumerate(_judge(reward.function, problems, completions)):
            try:
                values[n, k] = _number(value)
            except Exception as error:
                message = describe_failure(reward.name, problems[n], completions[n], error)
                if on_failure == "error":
                    raise ValueError(message) from error
                failures.append(message)
    scored = ~np.isnan(values).any(axis=1)
    weights = np.array([reward.weight for reward in rewards], np.float32)
    total = np.where(scored, np.where(scored[:, None], values, 0) @ weights, 0).astype(np.float32)
    return Scores(rewards=values, total=total, scored=scored, failures=tuple(failures))


def _judge(
    function: Reward | Batched, problems: Sequence[Problem], completions: Sequence[str]
) -> Iterator[object]:
    """What a reward says of each completion, or the exception it raised."""
    if isinstance(function, Batched):
        values = function.function(problems, completions)
        if len(values) != len(completions):
            raise ValueError(
                f"a batched reward returned {len(values)} values for {len(completions)} completions."
            )
        yield from values
        return
    for problem, completion in zip(problems, completions, strict=True):
        try:
            yield function(problem, completion)
        except Exception as error:
            yield error


def describe_failure(name: str, problem: Problem, completion: str, error: Exception) -> str:
    """What went wrong, and on what."""
    where = problem.metadata.get("location")
    return (
        f"Reward {name!r} failed: {type(error).__name__}: {error}\n"
        f"  problem{f' ({where})' if where else ''}: {shorten(problem.prompt_text)!r}\n"
        f"  answer: {shorten(problem.answer)!r}\n"
        f"  completion: {shorten(completion)!r}\n"
        'reward.on_failure "unscored" leaves such samples out of their group.'
    )


def _bind(
    function: Callable[..., float | None] | Batched, name: str, options: Mapping[str, object]
) -> Reward | Batched:
    if isinstance(function, Batched):
        return Batched(_bind(function.function, name, options))
    try:
        inspect.signature(function).bind(None, "", **options)
    except TypeError as error:
        raise ValueError(f"reward.functions: options {dict(options)} of {name!r}: {error}.") from None
    except ValueError:  # some callables written in C have no signature
        pass
    return partial(function, **options) if options else function


def _number(value: object) -> float:
    if isinstance(value, Exception):
        raise value
    if value is None:
        raise ValueError("it returned None, which says that it does not apply")
    if isinstance(value, str | bytes):
        raise TypeError(f"it returned {value!r}, expected a number")
    number = np.float32(value)  # type: ignore[arg-type]
    if np.ndim(number) or not np.isfinite(number):
        raise ValueError(f"it returned {value}, expected a finite number")
    return float(number)
