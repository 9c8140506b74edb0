"""Worker processes that judge what a model wrote, each job within hard limits.

A job may use so much processor time; the kernel then kills the worker, whatever code it is in, and the pool
starts another. So a verdict does not depend on how busy the machine is. A limit in wall-clock time is only
the backstop for jobs that sleep. Memory is limited per worker. Signals and alarms in the training process
are not used, so any thread may call this.

Workers are forked from a server process that has imported the libraries and nothing else: never from the
training process, whose JAX threads a fork would break, and without importing its main module again.
"""

import atexit
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any, NamedTuple

from grpo_jax import scratch

PRELOAD = ("math_verify", "latex2sympy2_extended", "sympy", "pebble")
JOBS_PER_WORKER = 2_000
"""Then a worker is replaced, because the caches of computer algebra only grow."""


class Limits(NamedTuple):
    """What one job may use."""

    cpu_seconds: float = 2.0
    wall_seconds: float = 30.0
    memory_bytes: int = 2 << 30


class OutOfBounds(Exception):
    """A job that was killed, or ran out of memory."""


class _Process(ForkServerProcess):
    """A worker that does not run the program's main module, which would import jax into every worker."""

    _hidden = threading.Lock()

    @classmethod
    def _Popen(cls, process_obj: Any) -> Any:
        from multiprocessing.popen_forkserver import Popen

        with cls._hidden:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                return Popen(process_obj)
            finally:
                sys.modules["__main__"] = main


class _Context(ForkServerContext):
    Process = _Process


class Pool:
    """Workers for jobs of one kind of limits."""

    def __init__(
        self, *, limits: Limits, workers: int | None = None, initializer: Callable[[], None] | None = None
    ) -> None:
        from pebble import ProcessPool

        self.limits = limits
        multiprocessing.set_forkserver_preload(list(PRELOAD))
        self._pool = ProcessPool(
            max_workers=workers or max(1, min(8, (os.cpu_count() or 2))),
            max_tasks=JOBS_PER_WORKER,
            initializer=_prepare,
            initargs=(limits, initializer),
            context=_Context(),
        )
        atexit.register(self.close)

    def map(self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """function(*job) for every job; OutOfBounds or the exception it raised in place of a result."""
        futures = [
            self._pool.schedule(
                _limited, args=(function, job, self.limits.cpu_seconds), timeout=self.limits.wall_seconds
            )
            for job in jobs
        ]
        return [_result(future) for future in futures]

    def close(self) -> None:
        """Stop the workers, and remove what the killed ones have left."""
        self._pool.stop()
        self._pool.join()
        scratch.sweep()


def _prepare(limits: Limits, initializer: Callable[[], None] | None) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel's default is to kill
    # A killed worker cannot remove its temporary files: they are in a folder that its successor knows to be left over.
    folder = scratch.own()
    folder.chmod(0o711)  # a guest may be run as another user, who has to get through
    tempfile.tempdir = str(folder)
    if initializer is not None:
        initializer()


def _limited(function: Callable[..., Any], job: tuple[Any, ...], cpu_seconds: float) -> Any:
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        return function(*job)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _result(future: Any) -> Any:
    from pebble import ProcessExpired

    try:
        return future.result()
    except (TimeoutError, ProcessExpired, MemoryError) as error:
        return OutOfBounds(str(error))
    except Exception as error:
        return error
