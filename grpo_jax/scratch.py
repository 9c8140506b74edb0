"""Temporary folders that go away even where the process that made them was killed.

    own      a folder of this process's, as long as it lives
    folder   one for the time of a with statement
    sweep    removes those whose process has ended without removing them
    remove   removes a folder, whatever a program has put into it

A process holds a lock on each of its folders, which the kernel lets go when it ends, in whatever way. So a folder that
nobody holds is left over, however young it is and whichever run it is of.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "grpo_jax_scratch_"


def own() -> Path:
    """A fresh folder, held until this process ends. Left-over folders of other processes are removed."""
    sweep()
    return _held()[0]


@contextmanager
def folder() -> Iterator[Path]:
    """A fresh folder, removed at the end."""
    sweep()
    path, lock = _held()
    try:
        yield path
    finally:
        remove(path)
        os.close(lock)


def sweep() -> None:
    """Removes this user's left-over folders."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, or held
            if path.lstat().st_uid == os.geteuid():
                lock = _lock(path)
                try:
                    remove(path)
                finally:
                    os.close(lock)


def remove(path: Path) -> None:
    """Removes a folder, however deep and however closed to reading what is in it."""
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):  # rm and chmod go deeper than Python may recurse
        for command in (["chmod", "-R", "u+rwx", path], ["rm", "-rf", path]):
            subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _held() -> tuple[Path, int]:
    """A fresh folder and its lock. One that a sweep has taken for left over, as it had no lock yet, is given up."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(OSError):
            lock = _lock(path)
            if path.exists():
                return path, lock
            os.close(lock)


def _lock(path: Path) -> int:
    """The lock on a folder, as an open file descriptor; an error if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
