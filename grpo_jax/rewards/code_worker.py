"""Judges programs in the sandbox, inside a worker process: unit tests, and cases of input and output.

Every case has a fresh folder, made here and removed here, so no program can leave anything to a later one.
What a program writes goes to files it cannot open itself. Imported by workers, so it must not import jax.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from grpo_jax import scratch
from grpo_jax.rewards.launchers import LAUNCHERS
from grpo_jax.rewards.sandbox import Exit, Guest, GuestLimits, outcome, supervise

GUEST = Path(__file__).parent / "guest"
MAX_OUTPUT = 1 << 20
"""Bytes of a program's output that are read; more is a wrong answer."""


class UnitTests(NamedTuple):
    """Sources that call the program's functions; a test passes if it runs to its end.

    `prelude` is run before each test (the problem's own code, not the model's). `entry_point` is the
    function that is the model's even if the prelude has one of that name, or CLASS.METHOD.
    """

    prelude: str
    tests: tuple[str, ...]
    entry_point: str = ""


class Cases(NamedTuple):
    """Standard inputs, and the standard output each should give, up to spaces at line ends."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def share_passed(
    launcher: str, program: str, tests: "UnitTests | Cases", limits: GuestLimits, partial_credit: bool
) -> float:
    """The share of tests that a program passes; without `partial_credit`, 1 or 0."""
    if isinstance(tests, UnitTests):
        passed = run_tests(launcher, program, tests, limits)
    else:
        passed = run_cases(launcher, program, tests, limits, all_cases=partial_credit)
    return sum(passed) / len(passed) if partial_credit else float(all(passed))


def run_tests(launcher: str, program: str, tests: UnitTests, limits: GuestLimits) -> list[bool]:
    """Which of the tests pass. Program and tests run in two sandboxes that exchange data only."""
    with _folders(2) as (solver, tester), _Pipes() as pipes:
        (solver / "program.py").write_text(program, "utf-8", "replace")
        (tester / "spec.json").write_text(json.dumps(tests._asdict()), "utf-8")
        verdict = tester.parent / "tester.err"
        with _opened(tester.parent / "solver.err") as complaints, _opened(verdict) as report:
            first = Guest(
                ["solver.py", "serve", "program.py"], solver, pipes.calls[0], pipes.replies[1], complaints
            )
            second = Guest(["tester.py", "spec.json"], tester, pipes.replies[0], pipes.calls[1], report)
            started = [supervise(LAUNCHERS[launcher], guest, limits) for guest in (first, second)]
            pipes.close()  # so that each sees the other's end
            ended = outcome(started[1])
            outcome(started[0], stop=True)
        passed = _last_line(verdict) if ended == Exit("exit", 0) else []
    return passed if len(passed) == len(tests.tests) else [False] * len(tests.tests)


def run_cases(
    launcher: str, program: str, cases: Cases, limits: GuestLimits, *, all_cases: bool
) -> list[bool]:
    """Which cases give the right output; without `all_cases`, none is run after the first wrong one."""
    passed = []
    for text, expected in zip(cases.inputs, cases.outputs, strict=True):
        ended, output = run_script(launcher, program, text, limits)
        passed.append(ended == Exit("exit", 0) and output is not None and _lines(output) == _lines(expected))
        if not passed[-1] and not all_cases:
            break
    return passed + [False] * (len(cases.inputs) - len(passed))


def run_script(launcher: str, program: str, text: str, limits: GuestLimits) -> tuple[Exit, str | None]:
    """How a program ended on an input, and what it printed; None if that was too much."""
    with _folders(1) as (folder,):
        (folder / "program.py").write_text(program, "utf-8", "replace")
        source, printed = folder.parent / "input", folder.parent / "output"
        source.write_text(text, "utf-8", "replace")
        with _opened(source, os.O_RDONLY) as stdin, _opened(printed) as stdout, _opened(os.devnull) as stderr:
            guest = Guest(["solver.py", "script", "program.py"], folder, stdin, stdout, stderr)
            ended = outcome(supervise(LAUNCHERS[launcher], guest, limits))
        output = printed.read_bytes() if printed.stat().st_size <= MAX_OUTPUT else None
    return ended, None if output is None else output.decode("utf-8", "replace")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _last_line(path: Path) -> list[bool]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_OUTPUT))
        line = file.read().rpartition(b"\n")[2]
    return json.loads(line) if line.startswith(b"[") else []


@contextmanager
def _folders(count: int) -> Iterator[list[Path]]:
    """Fresh folders that guests may write in, with the scripts; the folder around them is out of reach."""
    outside = Path(tempfile.mkdtemp())
    outside.chmod(0o711)
    try:
        inside = [outside / str(i) for i in range(count)]
        for folder in inside:
            folder.mkdir()
            for script in ("solver.py", "tester.py"):
                shutil.copyfile(GUEST / script, folder / script)
        yield inside
    finally:
        scratch.remove(outside)


@contextmanager
def _opened(path: str | Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Pipes:
    """Two pipes between a tester and a solver, as (read end, write end)."""

    def __enter__(self) -> "_Pipes":
        self.calls, self.replies = os.pipe(), os.pipe()
        self._open: Sequence[int] = (*self.calls, *self.replies)
        return self

    def close(self) -> None:
        for end in self._open:
            os.close(end)
        self._open = ()

    def __exit__(self, *_: object) -> None:
        self.close()
