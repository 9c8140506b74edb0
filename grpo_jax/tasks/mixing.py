"""Several pools of problems, drawn by weight: sources of a mixture, or strata of difficulty.

A mixture is plain data beside the list of training problems, so the order stays a function of the cursor
(`iteration.batch`), and a run can be resumed anywhere.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from numbers import Real

from grpo_jax.tasks.splitting import Mixture, TaskSplit, distinct, refuse_overlap, restrict
from grpo_jax.types import Problem


def mixture(splits: Sequence[TaskSplit], weights: Sequence[float]) -> TaskSplit:
    """One split of many; a prompt that several have belongs to the first."""
    if not splits:
        raise ValueError("data.components is empty, expected at least one.")
    _check_weights(weights, "data.components: the weights")
    train = distinct(problem for part in splits for problem in part.train)
    held_out = distinct(problem for part in splits for problem in part.held_out)
    refuse_overlap(train, held_out)
    owner = {}
    for number, part in enumerate(splits):
        for problem in part.train:
            owner.setdefault(problem.prompt, number)
    pools = _pools([owner[problem.prompt] for problem in train], len(splits))
    empty = [number for number, pool in enumerate(pools) if not pool and weights[number]]
    if empty:
        raise ValueError(
            f"data.components: component {empty[0]} has no training problem that those before it lack."
        )
    return TaskSplit(train, held_out, Mixture(pools, tuple(weights)))


def by_difficulty(
    split: TaskSplit, *, field: str, edges: Sequence[float], weights: Sequence[float]
) -> TaskSplit:
    """The training problems in strata between `edges` of a metadata field; the held-out ones as they are."""
    if len(weights) != len(edges) + 1 or any(a >= b for a, b in pairwise(edges)):
        raise ValueError(
            f"data.edges is {tuple(edges)} and data.weights {tuple(weights)}, expected increasing edges and "
            "one more weight."
        )
    _check_weights(weights, "data.weights")
    strata = [bisect_right(edges, _difficulty(problem, field)) for problem in split.train]
    pools = _pools(strata, len(weights))
    empty = [i for i, pool in enumerate(pools) if weights[i] and not pool]
    if empty:
        counts = ", ".join(str(len(pool)) for pool in pools)
        raise ValueError(
            f"data.edges: stratum {empty[0]} has a weight but no problems; the strata hold {counts}."
        )
    return TaskSplit(split.train, split.held_out, Mixture(pools, tuple(weights)))


def drop_long(
    split: TaskSplit, *, tokens: Callable[[Problem], int], limit: int
) -> tuple[TaskSplit, tuple[int, int]]:
    """The split without prompts of more than `limit` tokens; how many were left out of training and held-out problems.

    Raises:
        ValueError: a pool of the mixture that is drawn from has no other problems.
    """
    kept = [i for i, problem in enumerate(split.train) if tokens(problem) <= limit]
    held_out = [problem for problem in split.held_out if tokens(problem) <= limit]
    shorter = replace(restrict(split, kept), held_out=held_out)
    if split.mixture is not None:
        pools = zip(shorter.mixture.pools, shorter.mixture.weights, strict=True)
        empty = [number for number, (pool, weight) in enumerate(pools) if weight and not pool]
        if empty:
            raise ValueError(
                f"data: pool {empty[0]} of the mixture has only prompts of more than {limit} tokens"
            )
    return shorter, (len(split.train) - len(kept), len(split.held_out) - len(held_out))


def _difficulty(problem: Problem, field: str) -> float:
    if field not in problem.metadata:
        raise ValueError(
            f"data.field: {field!r} is not in a problem's metadata, which has {', '.join(problem.metadata)}."
        )
    value = as_number(problem.metadata[field])
    if value is None:
        raise ValueError(
            f"data.field: {field!r} is {problem.metadata[field]!r} in a problem, expected a number."
        )
    return value


def as_number(value: object) -> float | None:
    """A difficulty as data sets write it (3, "3/8", "Level 5") as a number; None if it is none."""
    if isinstance(value, str):
        numbers = re.findall(r"-?\d+(?:\.\d+|/[1-9]\d*)?", value)
        value = Fraction(numbers[-1]) if numbers else None
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _pools(owners: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    pools: list[list[int]] = [[] for _ in range(count)]
    for index, owner in enumerate(owners):
        pools[owner].append(index)
    return tuple(map(tuple, pools))


def _check_weights(weights: Sequence[float], what: str) -> None:
    if not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ValueError(f"{what} are {tuple(weights)}, expected numbers of at least 0, not all 0.")
