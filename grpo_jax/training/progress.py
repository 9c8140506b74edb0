"""The console while a run trains: a live bar on a terminal, plain lines in a log file, with the time left."""

import time
from collections import deque
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

WATCHED = {
    "warm_start/loss": ("loss", "{:.3f}"),
    "reward/mean": ("reward", "{:.3f}"),
    "eval/accuracy": ("held-out", "{:.1%}"),
    "length/mean": ("length", "{:.1f}"),
    "entropy/mean": ("entropy", "{:.3f}"),
    "sampler/programs": ("programs", "{:.0f}"),
}
"""The few numbers a person watches: metric, what the console calls it, and how it is written."""


class Progress:
    """Progress of one stage, as a context manager.

    Args:
        total: last step of the stage.
        description: what the stage is called on the console.
        start: step the stage continues from.
        lines: about how many lines a log file gets; every step with an evaluation has one besides.
        watched: what of the metrics to show, as `WATCHED` describes it.
        console: where to write; standard output by default.
    """

    def __init__(
        self,
        *,
        total: int,
        description: str,
        start: int = 0,
        lines: int = 20,
        watched: Mapping[str, tuple[str, str]] = WATCHED,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._description, self._start = total, description, start
        self._every, self._watched = max(1, total // lines), watched
        self._console = console or Console()
        self._clock, self._ticks = clock, deque([clock()], maxlen=21)
        self._latest: dict[str, float] = {}
        self._bar = self._make_bar() if self._console.is_terminal or self._console.is_jupyter else None

    def _make_bar(self) -> Bar:
        bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            console=self._console,
        )
        self._task = bar.add_task(self._description, total=self._total, completed=self._start, status="")
        return bar

    def update(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Shows that `step` is done. A number not measured in this step keeps its latest value."""
        if step == self._start + 2:
            self._ticks.popleft()  # the first step compiled; it says nothing about those to come
        self._ticks.append(self._clock())
        self._latest |= {name: v for name in self._watched if (v := metrics.get(name)) is not None}
        if self._bar is not None:
            self._bar.update(self._task, completed=step, status=self._status(step))
        elif step % self._every == 0 or step in (self._start + 1, self._total) or "eval/accuracy" in metrics:
            self.note(f"{self._description} {step}/{self._total}  {self._status(step)}")

    def _status(self, step: int) -> str:
        watched = [(name, *how) for name, how in self._watched.items() if name in self._latest]
        parts = [f"{label} {form.format(self._latest[name])}" for name, label, form in watched]
        if len(self._ticks) > 1:
            seconds = (self._ticks[-1] - self._ticks[0]) / (len(self._ticks) - 1)
            parts += [f"{seconds:.2g} s/step", f"left {clock_text(seconds * (self._total - step))}"]
        return "  ".join(parts)

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def clock_text(seconds: float) -> str:
    """75 -> "1:15", 4000 -> "1:06:40"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
