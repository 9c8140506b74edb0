"""Metrics while a run trains: where they are written, how long each phase took, how a rollout went."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorboardX import SummaryWriter

from grpo_jax.training.records import Closing, Position, RowWriter, finite
from grpo_jax.types import STOPPED


class MetricWriter(Closing):
    """Scalars of each step to `metrics.jsonl`, TensorBoard and, if asked, Weights & Biases.

    A value that is not finite is written as null in the JSONL and left out elsewhere.

    Args:
        folder: the run folder.
        resumed: the restored position of a resumed run; None starts new files.
        wandb: keyword arguments of `wandb.init`; None logs nothing there.
    """

    def __init__(
        self, folder: Path | str, *, resumed: Position | None = None, wandb: Mapping[str, Any] | None = None
    ):
        self._folder, self._resumed = Path(folder), resumed
        self._wandb = None if wandb is None else _wandb_run(wandb)
        self._rows = RowWriter(self._folder / "metrics.jsonl", resumed=resumed)
        self._boards: dict[str, SummaryWriter] = {}

    def write(self, metrics: Mapping[str, Any], *, step: int, stage: str) -> dict[str, float | None]:
        """Records the scalars of one step, numbers or arrays of one element; returns them as numbers."""
        scalars = {name: _scalar(name, value) for name, value in jax.device_get(dict(metrics)).items()}
        self._rows.write({**scalars, "step": step, "stage": stage})
        present = {name: value for name, value in scalars.items() if value is not None}
        for name, value in present.items():
            self._board(stage).add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log({**present, "step": step, "stage": stage})
        return scalars

    def _board(self, stage: str) -> SummaryWriter:
        # Each stage counts from 1, so each is a run of its own to TensorBoard. purge_step hides what a killed
        # run had written after the restored step.
        if stage not in self._boards:
            here = self._resumed is not None and self._resumed.stage == stage
            purge = self._resumed.step + 1 if here else 0
            self._boards[stage] = SummaryWriter(str(self._folder / "tensorboard" / stage), purge_step=purge)
        return self._boards[stage]

    def close(self) -> None:
        self._rows.close()
        for board in self._boards.values():
            board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _scalar(name: str, value: Any) -> float | None:
    if name in ("step", "stage"):
        raise ValueError(f"metric name {name!r} is reserved for the row's own position")
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSU":
        raise ValueError(f"metric {name!r} must be one number, got {value!r}")
    return finite(array.reshape(()))


def _wandb_run(options: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ValueError('logging to wandb needs the extra: pip install "grpo_jax[wandb]"') from error
    run = wandb.init(**options)
    run.define_metric("*", step_metric="step")
    return run


class PhaseTimer:
    """Wall-clock seconds by phase of a step. A phase inside another is not counted twice.

    JAX returns before the device has finished: block on a phase's results inside the phase.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._inner: list[float] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._seconds[phase] = self._seconds.get(phase, 0.0) + elapsed - self._inner.pop()
            if self._inner:
                self._inner[-1] += elapsed

    def take(self) -> dict[str, float]:
        """`time/<phase>_seconds` since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {f"time/{phase}_seconds": value for phase, value in seconds.items()}


def turn_metrics(*, sampled: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """How the policy talked with its environment.

    - `turns/mean`: turns of the policy per completion; 1 says that it never got an answer.
    - `turns/environment_fraction`: share of the completions' tokens that an environment wrote. `length/` metrics count
      them, since they take room; nothing else does.

    Args:
        sampled: [N, T] the tokens that the policy wrote. lengths: [N] tokens of completions, answers included.
    """
    before = np.pad(sampled[:, :-1], ((0, 0), (1, 0)))
    return {
        "turns/mean": float((sampled & ~before).sum(axis=1).mean()),
        "turns/environment_fraction": float(1 - sampled.sum() / np.maximum(np.sum(lengths), 1)),
    }


def rollout_metrics(
    *,
    rewards: np.ndarray,
    names: Sequence[str],
    total: np.ndarray,
    scored: np.ndarray,
    lengths: np.ndarray,
    stop_reasons: np.ndarray,
    advantages: np.ndarray,
) -> dict[str, float]:
    """Rewards and lengths of a rollout, before any mask.

    A mean is over the samples that have a value, and is left out when none has: one NaN is not a NaN mean.

    Args:
        rewards: [N, K] each function's reward, NaN where it had none.
        names: [K] names of the reward functions.
        total: [N] weighted sums. scored: [N] whether the sum is a reward at all.
        lengths: [N] tokens of completions, the truncated ones and an environment's included. stop_reasons, advantages: [N].
    """
    scored = np.asarray(scored, bool)
    columns = {f"rewards/{name}/mean": np.asarray(rewards)[:, k] for k, name in enumerate(names)}
    columns["reward/mean"] = np.where(scored, total, np.nan)
    columns["length/positive_mean"] = np.where(np.asarray(advantages) > 0, lengths, np.nan)
    columns["length/negative_mean"] = np.where(np.asarray(advantages) < 0, lengths, np.nan)
    present = {name: values[np.isfinite(values)] for name, values in columns.items()}
    return {
        **{name: float(values.mean()) for name, values in present.items() if values.size},
        "reward/unscored_count": float(np.sum(~scored)),
        "length/mean": float(np.mean(lengths)),
        "length/total": float(np.sum(lengths)),
        "length/truncated_fraction": float(np.mean(np.asarray(stop_reasons) != STOPPED)),
    }
