"""Every completion judged by every reward, and what an exception, a NaN or a None means.

A sample that a reward could not judge is an error that shows it, or counts as unscored: it then leaves its
group's statistics, because a failure counted as 0 would teach the model that its answer was wrong.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from grpo_jax.config import RewardFunction
from grpo_jax.resolve import resolve
from grpo_jax.rewards import adapters, builtin, code, form, math, reasoning_gym
from grpo_jax.rewards.judged import Judged
from grpo_jax.tasks.splitting import shorten
from grpo_jax.types import InputError, Problem

Reward = Callable[..., float | None]
"""(problem, completion) -> a number, or None where it does not apply. One that has a parameter
`completion_length` is also given the number of tokens, the stop token included."""

Check = Callable[[Sequence[Problem]], Iterable[tuple[int, str]]]
"""The indices of problems that a reward can not judge, and why."""


@dataclass(frozen=True)
class Batched:
    """A reward that is called once with all problems and completions, because it shares them among workers.

    `function(problems, completions, **options)` returns as many numbers; an exception in place of a number
    says that this sample could not be judged.
    """

    function: Callable[..., Sequence[float | Exception | None]]
    start: Callable[[], object] | None = None
    """Called when the reward is built: raises if this machine lacks what it needs."""
    recorded: bool = False
    """Its verdicts may depend on time limits, or on something outside: a step that is made again is not judged again."""


BUILTINS: dict[str, Callable[..., float | None] | Batched] = {
    "exact_match": builtin.exact_match,
    "number_match": builtin.number_match,
    "math": Batched(math.math_all, start=math.start, recorded=True),
    "code": Batched(code.code_all, start=code.start, recorded=True),
    "reasoning_gym": Batched(reasoning_gym.reasoning_gym_all, start=reasoning_gym.start, recorded=True),
    "format": Batched(form.format_all),
    "tags": form.tags,
    "thinking": form.thinking,
    "overlong": form.overlong,
    "repetition": form.repetition,
    "language": form.language,
}

CHECKS: dict[str, Check] = {
    "number_match": builtin.check_numbers,
    "math": math.check_golds,
    "code": code.check_tests,
    "reasoning_gym": reasoning_gym.check_problems,
}
LENGTH = "completion_length"
ADAPTERS = {"trl": adapters.from_trl, "verl": adapters.from_verl}
"""Prefixes of an import path, for functions with the signature of another program."""


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
    verdicts: tuple[Mapping[str, str], ...]
    """N times {name of a reward: what it found}, for rewards that say more than a number."""


@dataclass(frozen=True)
class WeightedReward:
    """A reward with its options bound, its name for the logs, and its factor in the sum."""

    name: str
    function: Reward | Batched
    weight: float
    takes_length: bool = False
    check: Check | None = None
    after: str = ""
    """Only what follows the last of this text is judged; a completion without it as an empty text."""


def build(functions: Sequence[RewardFunction]) -> tuple[WeightedReward, ...]:
    """The rewards a config names; wrong names and options are errors here, before anything runs."""
    if not functions:
        raise ValueError("reward.functions is empty, expected at least one reward.")
    built: list[WeightedReward] = []
    for described in functions:
        if not np.isfinite(described.weight):
            raise ValueError(f"reward.functions: the weight of {described.name!r} is {described.weight}.")
        function = _find(described.name)
        name = described.name.rpartition(":")[2]
        while name in (reward.name for reward in built):
            name += "_"
        bound = _bind(function, described.name, described.options)
        takes_length = _takes_length(function) and LENGTH not in described.options
        check = CHECKS.get(described.name)
        built.append(
            WeightedReward(name, bound, described.weight, takes_length, check, after=described.after)
        )
    return tuple(built)


def score(
    *,
    problems: Sequence[Problem],
    completions: Sequence[str],
    rewards: Sequence[WeightedReward],
    on_failure: Literal["error", "unscored"],
    lengths: Sequence[int] | None = None,
) -> Scores:
    """Judge completion n, of `lengths[n]` tokens, against problem n with every reward."""
    if len(problems) != len(completions):
        raise ValueError(f"score: {len(problems)} problems but {len(completions)} completions.")
    values = np.full((len(completions), len(rewards)), np.nan, np.float32)
    failures = []
    verdicts: list[dict[str, str]] = [{} for _ in completions]
    for k, reward in enumerate(rewards):
        for n, value in enumerate(_judge(reward, problems, completions, lengths)):
            try:
                values[n, k] = _number(value)
                if isinstance(value, Judged):
                    verdicts[n][reward.name] = value.verdict
            except Exception as error:
                message = describe_failure(reward.name, problems[n], completions[n], error)
                if on_failure == "error":
                    raise InputError(message) from error
                failures.append(message)
    scored = ~np.isnan(values).any(axis=1)
    weights = np.array([reward.weight for reward in rewards], np.float32)
    total = np.where(scored, np.where(scored[:, None], values, 0) @ weights, 0).astype(np.float32)
    return Scores(
        rewards=values, total=total, scored=scored, failures=tuple(failures), verdicts=tuple(verdicts)
    )


def join(parts: Sequence[Scores]) -> Scores:
    """The scores of several calls as those of one."""
    return Scores(
        rewards=np.concatenate([part.rewards for part in parts]),
        total=np.concatenate([part.total for part in parts]),
        scored=np.concatenate([part.scored for part in parts]),
        failures=tuple(failure for part in parts for failure in part.failures),
        verdicts=tuple(verdict for part in parts for verdict in part.verdicts),
    )


def check(rewards: Sequence[WeightedReward], problems: Sequence[Problem]) -> None:
    """Raise if a reward can not judge some of the problems: an answer that can not be read, no tests."""
    for reward in rewards:
        bad = list(reward.check(problems)) if reward.check else []
        if bad:
            shown = "".join(
                f"\n  {problems[i].metadata.get('location', f'problem {i}')}: {reason}"
                for i, reason in bad[:3]
            )
            raise ValueError(
                f"reward {reward.name!r} can not judge {len(bad)} of {len(problems)} problems:{shown}"
            )


def _judge(
    reward: WeightedReward,
    problems: Sequence[Problem],
    completions: Sequence[str],
    lengths: Sequence[int] | None,
) -> Iterator[object]:
    """What a reward says of each completion, or the exception it raised."""
    function = reward.function
    if reward.after:
        completions = [following(completion, reward.after) for completion in completions]
    if isinstance(function, Batched):
        yield from _judge_batch(function, problems, completions)
        return
    if reward.takes_length and lengths is None:
        raise ValueError(f"reward {reward.name!r} needs the number of tokens, which is not known here.")
    for n, (problem, completion) in enumerate(zip(problems, completions, strict=True)):
        try:
            length = (
                {"completion_length": int(lengths[n])} if reward.takes_length and lengths is not None else {}
            )
            yield function(problem, completion, **length)
        except Exception as error:
            yield error


def following(completion: str, mark: str) -> str:
    """What comes after the last mark; nothing where there is none."""
    _, found, rest = completion.rpartition(mark)
    return rest if found else ""


def _judge_batch(
    function: Batched, problems: Sequence[Problem], completions: Sequence[str]
) -> Sequence[object]:
    try:
        values = function.function(problems, completions)
        if len(values) != len(completions):
            raise ValueError(f"it returned {len(values)} values for {len(completions)} completions")
        return values
    except Exception as error:
        return [error] * len(completions)


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


def _find(name: str) -> Callable[..., Any] | Batched:
    adapter, _, path = name.partition(":")
    if adapter in ADAPTERS and ":" in path:
        return Batched(ADAPTERS[adapter](resolve(path, {}, "reward.functions")))
    function = resolve(name, BUILTINS, "reward.functions")
    if inspect.iscoroutinefunction(function):
        return Batched(adapters.from_coroutine(function), recorded=True)
    return function


def _bind(
    function: Callable[..., Any] | Batched, name: str, options: Mapping[str, object]
) -> Reward | Batched:
    if isinstance(function, Batched):
        bound = _bind(function.function, name, options)
        if function.start is not None:
            function.start()
        return Batched(bound, recorded=function.recorded)
    given = dict(options)
    if _takes_length(function):
        given.setdefault(LENGTH, 0)
    try:
        inspect.signature(function).bind(None, "", **given)
    except TypeError as error:
        raise ValueError(f"reward.functions: options {dict(options)} of {name!r}: {error}.") from None
    except ValueError:  # some callables written in C have no signature
        pass
    return partial(function, **options) if options else function


def _takes_length(function: Callable[..., Any] | Batched) -> bool:
    if isinstance(function, Batched):
        return False
    try:
        return LENGTH in inspect.signature(function).parameters
    except ValueError:
        return False


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
