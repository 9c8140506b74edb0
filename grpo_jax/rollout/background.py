"""Sampling in a thread of its own, so that finished groups can be judged, or a step taken, meanwhile.

The engine gets the thread and the caller keeps the main one: rewards may rely on signals, which no other thread
receives. Calls run one after another, in the order they were made.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from jaxtyping import Array, Key

from grpo_jax.rollout.engine import Engine
from grpo_jax.rollout.settings import Sampling
from grpo_jax.types import Rollout, rows


class Cancelled(RuntimeError):
    """The call was no longer wanted."""


class Pending:
    """A call that is under way."""

    def __init__(self) -> None:
        self._future: Future[Rollout] = Future()
        self._finished: SimpleQueue[tuple[int, Rollout] | None] = SimpleQueue()
        self._cancelled = False

    def groups(self) -> Iterator[tuple[int, Rollout]]:
        """(place in the call, its rows) of every group, as they finish. Raises what the call raised."""
        while (group := self._finished.get()) is not None:
            yield group
        self._future.result()

    def result(self) -> Rollout:
        """The whole rollout, once it is there; raises what the call raised."""
        return self._future.result()

    def cancel(self) -> None:
        """Lets the call end at the next group that finishes. `result` then raises `Cancelled`."""
        self._cancelled = True

    def _put(self, group: int, rollout: Rollout) -> None:
        if self._cancelled:
            raise Cancelled("this rollout was cancelled")
        self._finished.put((group, rollout))


def finished(rollout: Rollout, *, group_size: int) -> Pending:
    """A call that is over already: groups in their places, `group_size` rows each."""
    pending = Pending()
    for place, first in enumerate(range(0, len(rollout.group_ids), group_size)):
        pending._put(place, rows(rollout, slice(first, first + group_size)))
    pending._finished.put(None)
    pending._future.set_result(rollout)
    return pending


class Background:
    """An engine behind one thread."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")
        self._latest: Pending | None = None
        self._holding = False
        self._loaded: Any | None = None

    @contextmanager
    def holding(self, params: Any) -> Iterator[None]:
        """Loads the parameters once for all calls that are started inside, which leave out theirs.

        Calls made before have ended when it begins, and what was started inside has ended or is cancelled at its end.
        """
        self._thread.submit(self._load, params).result()
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            self._cancel()
            self.release()

    def start(
        self,
        params: Any | None,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        key: Key[Array, ""],
        keep: bool = False,
        **options: Any,
    ) -> Pending:
        """Begins `load(params)` and `generate(prompt_ids, …)`. The parameters must not be donated before it ends.

        None are those that are held, inside `holding` and only there. What is to `keep` stays with the engine, and is not
        loaded again by a call that gives the same object, until `release`, or until other parameters are loaded.
        """
        assert (params is None) == self._holding, "parameters are given to the call or held, and not both"
        pending = Pending()

        def call() -> Rollout:
            if params is not None:
                self._load(params)
            try:
                return self.engine.generate(
                    prompt_ids, sampling=sampling, key=key, on_group=pending._put, **options
                )
            finally:  # a resharded copy would take up memory while nothing is sampled
                if params is not None and not keep:
                    self._load(None)

        pending._future = self._thread.submit(call)
        pending._future.add_done_callback(lambda _: pending._finished.put(None))
        self._latest = pending
        return pending

    def release(self) -> None:
        """Lets the engine go of what was kept, as soon as the calls made before have ended."""
        self._thread.submit(self._load, None).result()

    def _load(self, params: Any | None) -> None:
        """In the engine's thread: loads these parameters, unless they are there."""
        if params is not self._loaded:
            self._loaded = None  # also where loading fails
            self.engine.load(params)
            self._loaded = params

    def close(self) -> None:
        """Cancels what is under way, and waits for it to end. The engine stays with whoever made it."""
        self._cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _cancel(self) -> None:
        if self._latest is not None:
            self._latest.cancel()
