"""Runs a model's Python where it can reach no network and no files but a fresh folder and the interpreter.

Two launchers keep the same promises: sandlock (Landlock and seccomp, for any user), and bubblewrap as a
non-root user. `sandbox_probe` tests the promises with the launcher that will be used, and without one that
keeps them nothing runs. Plain processes with resource limits are no sandbox, so there is no such launcher.

Every guest has a supervisor process of its own, forked from a worker (never from the training process),
which sets the limits that the kernel enforces, watches the folder's size, and ends the guest with all its
descendants.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class GuestLimits(NamedTuple):
    """What one guest may use."""

    cpu_seconds: int = 5
    wall_seconds: float = 20.0
    memory_bytes: int = 512 << 20
    processes: int = 8
    file_bytes: int = 16 << 20
    folder_bytes: int = 64 << 20
    open_files: int = 64


class Exit(NamedTuple):
    """How a guest ended. `reason` is exit, timeout, killed (for what it used) or failed (to start)."""

    reason: str
    code: int


class Guest(NamedTuple):
    """A Python script with its folder and its three streams, as file descriptors."""

    arguments: Sequence[str]
    folder: Path
    stdin: int
    stdout: int
    stderr: int


class Running(Protocol):
    """A started guest."""

    def wait(self, timeout: float) -> Exit:
        """How it ended; ended by force after `timeout` seconds."""

    def kill(self) -> None:
        """End it now."""


class Launcher(Protocol):
    """A way to start guests."""

    name: str

    def missing(self) -> str | None:
        """What this machine lacks to use it, or None."""

    def start(self, guest: Guest, limits: GuestLimits) -> Running:
        """Start a guest; called in its supervisor, whose limits it inherits."""


PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5
"""What a supervisor has, beyond its guest's time, to say how that ended."""
_supervisors: set[int] = set()


class Supervised(NamedTuple):
    """A guest's supervisor process, and where it reports."""

    pid: int
    report: int
    deadline: float


def supervise(launcher: Launcher, guest: Guest, limits: GuestLimits) -> Supervised:
    """Start a guest under a supervisor process of its own."""
    worker = os.getpid()
    _adopt()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        ended = Exit("failed", -1)
        try:
            os.setsid()
            _close_all_but(write_end, guest.stdin, guest.stdout, guest.stderr)
            ended = _run(launcher, guest, limits, worker)
        finally:
            with contextlib.suppress(OSError):
                os.write(write_end, json.dumps(ended).encode())
            os._exit(0)
    os.close(write_end)
    _supervisors.add(pid)
    return Supervised(pid, read_end, time.monotonic() + limits.wall_seconds + GRACE_SECONDS)


def outcome(supervised: Supervised, *, stop: bool = False) -> Exit:
    """How the guest ended, or was made to by `stop`; by force if its supervisor does not say in time."""
    pid, report, deadline = supervised
    if stop:
        os.kill(pid, signal.SIGTERM)
    text = b""
    try:
        ready, _, _ = select.select([report], [], [], max(0, deadline - time.monotonic()))
        text = os.read(report, 1000) if ready else b""
    finally:
        os.close(report)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        _supervisors.discard(pid)
        if not text:  # it was killed, so what it watched over is this process's now
            _end_children(_supervisors)
    return Exit(*json.loads(text)) if text else Exit("killed", -1)


def _run(launcher: Launcher, guest: Guest, limits: GuestLimits, worker: int) -> Exit:
    for what, value in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))
    _adopt()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    running = launcher.start(guest, limits)
    for stream in (guest.stdin, guest.stdout, guest.stderr):
        os.close(stream)
    ended: list[Exit] = []
    waiter = threading.Thread(target=lambda: ended.append(running.wait(limits.wall_seconds)))
    waiter.start()
    killed = False
    try:
        while waiter.is_alive():
            waiter.join(0.02)
            full = folder_bytes(guest.folder, limits.folder_bytes) > limits.folder_bytes
            if not killed and (full or stopped.is_set() or os.getppid() != worker):
                killed = True
                running.kill()
    finally:  # also where the launcher could not kill
        _end_children(set())
    return Exit("killed", -1) if killed or not ended else ended[0]


def _adopt() -> None:
    """Become the parent of descendants whose own parent ends, so that none is out of reach."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_children(kept: set[int]) -> None:
    """Kill and reap every child but those kept, and what they leave behind, until there is none."""
    while left := _children() - kept:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> set[int]:
    mine = str(os.getpid())
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
            # The command's name, in parentheses, may hold anything; the parent is the second field after it.
            if file.read().rpartition(")")[2].split()[1] == mine:
                found.add(int(entry))
    return found


def _close_all_but(*kept: int) -> None:
    """Whatever else the worker had open, such as the other ends of pipes."""
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def folder_bytes(folder: Path, enough: int) -> int:
    """Bytes on disk under a folder, a file counting for at least 4096, until there are more than `enough`.

    A folder that cannot be read, because its path is too long or reading it is forbidden, may hold anything.
    """
    total, left = 0, [str(folder)]
    while left and total <= enough:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += max(4096, entry.stat(follow_symlinks=False).st_blocks * 512)
                        if entry.is_dir(follow_symlinks=False):
                            left.append(entry.path)
                    if total > enough:
                        break
        except (FileNotFoundError, NotADirectoryError):  # gone since it was listed
            continue
        except OSError:
            return enough + 1
    return total
