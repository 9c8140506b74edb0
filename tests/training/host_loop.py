"""A process of a run in which hosts meet again and again, for tests that disturb one: MODE FOLDER COORDINATOR PROCESS."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from grpo_jax.config import DistributedConfig, MeshConfig
from grpo_jax.training import hosts, loop, setup, sharding
from tests.tiny import tiny

TIMEOUT = 8


def begin_slowly(folder: Path, process: int) -> None:
    """A run whose parameters are split between the hosts, the second of which is long in opening its journal."""
    opened = loop.open_journal

    def slow(*arguments, **options):
        time.sleep(600 * process)
        return opened(*arguments, **options)

    loop.open_journal = slow
    config = tiny(folder, mesh=MeshConfig(data=1, fsdp=2))
    loop.train(setup.prepare(replace(config, warm_start=replace(config.warm_start, steps=0))))


def main(mode: str, folder: str, coordinator: str, process: int) -> None:
    """Meets the other host three times; the second host then does what `mode` says, and the first goes on."""
    hosts.connect(DistributedConfig(True, coordinator, 2, process, TIMEOUT))
    assert hosts.share(3) == range(2 * process, 2 * process + 2)
    assert hosts.gather({"host": process}) == [{"host": 0}, {"host": 1}]
    assert hosts.any_of(process == 1) and not hosts.any_of(False)
    if mode == "begins slowly":
        begin_slowly(Path(folder), process)
    mesh = sharding.make_mesh(jax.device_count())
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
    ones = jax.make_array_from_callback(
        (2,), NamedSharding(mesh, PartitionSpec("data")), lambda _: jnp.ones(1)
    )
    assert total(ones) == 2
    if mode == "fails":
        with hosts.alike():
            if process == 1:
                raise ValueError("reward.functions: no such file on this host")
    elif process == 1 and mode == "falls behind":
        time.sleep(600)
    elif process == 1:
        os.kill(os.getpid(), signal.SIGKILL if mode == "dies" else signal.SIGSTOP)
    elif mode == "stops in a program":
        print(total(ones))
    while True:
        hosts.any_of(False)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
