"""What the loop writes down as it goes: one object over the metric rows, the samples, the console and the clock."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from grpo_jax.evaluation import Evaluation
from grpo_jax.training import hosts, replaying
from grpo_jax.training.metrics import MetricWriter, PhaseTimer
from grpo_jax.training.progress import Progress
from grpo_jax.training.records import Position, SampleWriter, save_evaluation
from grpo_jax.training.verdicts import Verdicts
from grpo_jax.types import Rollout

TITLES = {"warm_start": "warm start", "policy": "GRPO"}


def open_journal(folder: Path, *, resumed: Position | None, wandb_project: str) -> "Journal":
    """The journal of this host: of several the first one writes."""
    if hosts.is_first():
        return Journal(folder, resumed=resumed, wandb_project=wandb_project)
    return Silent(folder, resumed=resumed)


class Journal:
    """The written side of a run. Close it (or leave its `with`) to flush everything."""

    def __init__(self, folder: Path, *, resumed: Position | None, wandb_project: str = ""):
        self.folder = folder
        self.timer = PhaseTimer()
        self.note: Callable[[str], None] = print
        """Shows a line to whoever watches, above the progress bar of the stage."""
        wandb = {"project": wandb_project, "name": folder.name, "dir": str(folder)} if wandb_project else None
        self._metrics = MetricWriter(folder, resumed=resumed, wandb=wandb)
        self._samples = SampleWriter(folder, resumed=resumed)
        self.verdicts = Verdicts(folder, resumed=resumed)

    @contextmanager
    def stage(
        self, name: str, *, total: int, start: int
    ) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
        """Gives a function (step, metrics) that records a step of the stage and shows it on the console."""
        with Progress(total=total, description=TITLES[name], start=start) as progress:
            self.note = progress.note

            def log(step: int, metrics: Mapping[str, Any]) -> None:
                seconds = self.timer.take()
                tokens = metrics.get("length/total")
                rate = (
                    {"throughput/completion_tokens_per_second": tokens / sum(seconds.values())}
                    if tokens
                    else {}
                )
                written = self._metrics.write({**metrics, **seconds, **rate}, step=step, stage=name)
                progress.update(step, written)

            yield log

    def samples(self, **columns: Any) -> None:
        """Records a few completions of a policy step; see `SampleWriter.write`."""
        self._samples.write(stage="policy", **columns)

    def rollout(self, rollout: Rollout, *, step: int) -> None:
        """Records all of a rollout, to be played back."""
        replaying.write(self.folder, rollout, step=step)

    def evaluation(self, result: Evaluation, *, step: int) -> None:
        """Records every judged completion of an evaluation."""
        save_evaluation(self.folder, result.completions, step=step, stage="policy")

    def close(self) -> None:
        """Flushes and closes every file."""
        self._metrics.close()
        self._samples.close()
        self.verdicts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Silent(Journal):
    """Takes what a journal takes and writes nothing but this host's verdicts."""

    def __init__(self, folder: Path, *, resumed: Position | None):
        self.timer = PhaseTimer()
        self.note = lambda line: None
        self.verdicts = Verdicts(folder, resumed=resumed, host=hosts.index())

    @contextmanager
    def stage(
        self, name: str, *, total: int, start: int
    ) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
        yield lambda step, metrics: None

    def samples(self, **columns: Any) -> None:
        pass

    def rollout(self, rollout: Rollout, *, step: int) -> None:
        pass

    def evaluation(self, result: Evaluation, *, step: int) -> None:
        pass

    def close(self) -> None:
        self.verdicts.close()
