"""Verdicts written down with the rollout they are on, and used again when a step is made again.

A judge within time limits can come to another verdict on a busier machine, and a reward that asks elsewhere can change
its mind. So a step that was judged, and lost because no checkpoint came after it, is not judged again by rewards that
are `recorded` (`rewards.scoring.Batched`): its rollout is the same bit for bit, and so are its verdicts. To have it
judged again, delete `verdicts.jsonl`.

A file has a row for every call of such a reward: the step, the reward, and, for a digest of each problem and
completion, what it said: [number or null, verdict or null]. Of several hosts each has a file of its own, on what it
judged (`verdicts-1.jsonl`, …); a run resumed on another number of hosts judges anew.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from numbers import Real
from pathlib import Path
from typing import Any

from grpo_jax.rewards.judged import Judged
from grpo_jax.rewards.scoring import Batched, WeightedReward
from grpo_jax.training.records import STAGES, Closing, Position, RowWriter, finite, read_rows
from grpo_jax.types import Problem

POLICY = STAGES[-1]


class Verdicts(Closing):
    """What recorded rewards said of the step in hand, and of later ones that a resumed run will make again."""

    def __init__(self, folder: Path, *, resumed: Position | None, host: int = 0):
        path = folder / (f"verdicts-{host}.jsonl" if host else "verdicts.jsonl")
        # Rows of steps to come are what this is for, so a resumed run keeps them all.
        self._rows = RowWriter(path, resumed=resumed and Position(POLICY, sys.maxsize))
        self._said: dict[tuple[int, str], dict[str, Any]] = {}
        for row in read_rows(path) if resumed else []:
            if Position(row["stage"], row["step"]).order() > resumed.order():
                self._said.setdefault((row["step"], row["reward"]), {}).update(row["said"])

    def remembered(
        self, rewards: Sequence[WeightedReward], *, step: int, failures: bool
    ) -> list[WeightedReward]:
        """The rewards, of which those that are recorded judge nothing of this step a second time.

        Args:
            rewards: of the run.
            step: the step whose rollout they are to judge.
            failures: whether that a completion could not be judged is a verdict too, or may be tried again.
        """
        self._said = {(at, name): said for (at, name), said in self._said.items() if at >= step}
        return [
            replace(reward, function=Batched(partial(self._judge, reward, step, failures)))
            if isinstance(reward.function, Batched) and reward.function.recorded
            else reward
            for reward in rewards
        ]

    def _judge(
        self,
        reward: WeightedReward,
        step: int,
        failures: bool,
        problems: Sequence[Problem],
        completions: Sequence[str],
    ) -> list[Any]:
        said = self._said.setdefault((step, reward.name), {})
        digests = [digest(*pair) for pair in zip(problems, completions, strict=True)]
        fresh = [n for n, name in enumerate(digests) if name not in said]
        values: dict[int, Any] = {}
        if fresh:
            judge = reward.function.function
            found = judge([problems[n] for n in fresh], [completions[n] for n in fresh])
            values = dict(zip(fresh, found, strict=True))
        new: dict[str, Any] = {}
        for n, value in values.items():
            if isinstance(value, Real) and finite(value) is not None:
                new[digests[n]] = [float(value), getattr(value, "verdict", None)]
            elif failures:
                new.setdefault(digests[n], [None, None])
        if new:
            self._rows.write({"stage": POLICY, "step": step, "reward": reward.name, "said": new})
            said |= new
        # What is no number goes on as it came: it says what went wrong.
        return [
            values.get(n) if said.get(name, [None])[0] is None else _read(*said[name])
            for n, name in enumerate(digests)
        ]

    def close(self) -> None:
        """Closes the file."""
        self._rows.close()


def digest(problem: Problem, completion: str) -> str:
    """What a verdict is on. A conversation with an environment is in the problem's `turns`."""
    parts = repr((problem.prompt, problem.answer, problem.metadata.get("turns"), completion))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


def _read(number: float, verdict: str | None) -> float:
    return number if verdict is None else Judged(number, verdict)
