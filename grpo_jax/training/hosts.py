"""Several hosts, one run: the same program on each, deciding alike.

    connect     before anything else: find the other hosts
    share       which items of a list are this host's to sample and judge
    gather      what every host found, on every host; from there on all compute the same
    meet        wait for one another, with a word from each: is a stop asked for, did something fail
    alike       an error of one host is an error on all of them

A host that dies or falls behind must not leave the others waiting without a word. Hosts meet before the programs they
run together, and one that is missing for `distributed.timeout_seconds` ends the run on the others, which say so. One that
dies while such a program runs is missed by JAX's heartbeats within the same time, and JAX ends the others, saying so.

With one host every function here does nothing, and costs nothing.
"""

import itertools
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import (
    distributed,
)  # Orbax reaches the coordination service in the same way: there is no public one
from jax.experimental import multihost_utils

from grpo_jax.config import DistributedConfig
from grpo_jax.types import InputError, TrainingStopped

START_SECONDS = 300
"""The least that the hosts have to start: a cluster does not start them at one moment."""

HEARTBEAT_SECONDS = 5
"""So much later than a missed meeting a missed heartbeat ends a process: the message of the first is clearer."""

SHUTDOWN_SECONDS = 30
"""The most that a host which is done waits for the others to be done."""

_timeout_seconds = 300
_meetings = itertools.count()


def connect(options: DistributedConfig) -> None:
    """Joins the run's other processes, if there are any. Must come before any other use of JAX's devices.

    What `options` leave open is read from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or else found
    by JAX itself on a TPU pod, under SLURM, Kubernetes or Open MPI.

    Raises:
        ValueError: the others cannot be found, or did not come in time.
    """
    global _timeout_seconds
    if not options.enabled:
        return
    _timeout_seconds = options.timeout_seconds
    processes = options.num_processes or os.environ.get("JAX_NUM_PROCESSES")
    process = options.process_id if options.process_id >= 0 else os.environ.get("JAX_PROCESS_ID")
    try:
        jax.distributed.initialize(
            options.coordinator or None,  # JAX reads JAX_COORDINATOR_ADDRESS itself
            None if processes is None else int(processes),
            None if process is None else int(process),
            initialization_timeout=max(options.timeout_seconds, START_SECONDS),
            heartbeat_timeout_seconds=options.timeout_seconds + HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=min(options.timeout_seconds, SHUTDOWN_SECONDS),
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"distributed: cannot join the other processes: {error} (give distributed.coordinator HOST:PORT, "
            "distributed.num_processes and distributed.process_id, or run where JAX can find them)"
        ) from error


def count() -> int:
    """Hosts (processes) in the run."""
    return jax.process_count()


def index() -> int:
    """This host, from 0."""
    return jax.process_index()


def is_first() -> bool:
    """Whether this is the host that writes."""
    return index() == 0


def share(total: int) -> range:
    """This host's places among `total`. All hosts have as many, so the last may go beyond `total`: to be dropped."""
    size = -(-total // count())
    return range(index() * size, (index() + 1) * size)


def meet(word: str = "") -> list[str]:
    """Waits for all hosts; returns the word of each. A host that does not come in time ends this process."""
    if count() == 1:
        return [word]
    client, number = distributed.global_state.client, next(_meetings)
    folder = f"grpo_jax/meetings/{number}/"
    try:
        client.key_value_set(f"{folder}{index():06d}", "." + word)  # a value must not be empty
        client.wait_at_barrier(folder, _timeout_seconds * 1000)
        words = [value[1:] for _, value in sorted(client.key_value_dir_get(folder))]
    except jax.errors.JaxRuntimeError as error:
        abandon(f"{_missing(client, folder)}\n{error}")
    if is_first() and number:
        client.key_value_delete(f"grpo_jax/meetings/{number - 1}/")  # all have left that one
    return words


def _missing(client: Any, folder: str) -> str:
    try:
        here = {int(key.rsplit("/", 1)[-1]) for key, _ in client.key_value_dir_get(folder)}
    except jax.errors.JaxRuntimeError:
        return "the first host, which the others meet at, is gone"
    hosts = ", ".join(str(host) for host in range(count()) if host not in here) or "a host"
    return (
        f"of {count()} hosts, {hosts} did not come within distributed.timeout_seconds = {_timeout_seconds}: "
        "dead, stuck or far behind; its own log may say why"
    )


def any_of(flag: bool) -> bool:
    """Whether the flag is set on any host."""
    return any(meet("1" if flag else ""))


def gather(value: Any) -> list[Any]:
    """The value of every host, by host. Values are pickled: arrays come back as they were, to the bit."""
    if count() == 1:
        return [value]
    mine = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = [int(size) for size in meet(str(mine.size))]
    padded = np.zeros(1 << max(sizes).bit_length(), np.uint8)  # of few sizes, since each is a program
    padded[: mine.size] = mine
    everyone = multihost_utils.process_allgather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(everyone, sizes, strict=True)]


def first_says(function: Any, *arguments: Any) -> Any:
    """What function(*arguments) returns on the first host, which alone calls it."""
    with alike():
        value = function(*arguments) if is_first() else None
    return gather(value)[0]


@contextmanager
def alike() -> Iterator[None]:
    """Errors inside, of any one host, are raised on all hosts, so that none waits for another that has left."""
    if count() == 1:
        yield
        return
    mine: Exception | None = None
    try:
        yield
    except Exception as error:
        mine = error
    words = meet("" if mine is None else f"{type(mine).__name__}: {mine}")
    if mine is not None:
        raise mine
    for host, word in enumerate(words):
        if word:
            raise InputError(f"host {host} of {count()}: {word}")


@contextmanager
def leaving_together() -> Iterator[None]:
    """Ends this process at once on an error the other hosts do not know of: its exit is what tells them."""
    try:
        yield
    except (InputError, TrainingStopped):
        raise  # on all hosts alike
    except BaseException:
        if count() == 1:
            raise
        abandon(traceback.format_exc())


def abandon(message: str) -> NoReturn:
    """Says why and ends this process: an orderly end would wait for hosts that will not answer."""
    print(f"grpo-jax: error: host {index()} of {count()}: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(2)
