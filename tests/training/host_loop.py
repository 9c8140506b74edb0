"""A process of a run in which hosts meet again and again, for tests that disturb one of them: MODE COORDINATOR PROCESS."""

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from grpo_jax.config import DistributedConfig
from grpo_jax.training import hosts, sharding

TIMEOUT = 8


def main(mode: str, coordinator: str, process: int) -> None:
    """Meets the other host three times; the second host then does what `mode` says, and the first goes on."""
    hosts.connect(DistributedConfig(True, coordinator, 2, process, TIMEOUT))
    assert hosts.share(3) == range(2 * process, 2 * process + 2)
    assert hosts.gather({"host": process}) == [{"host": 0}, {"host": 1}]
    assert hosts.any_of(process == 1) and not hosts.any_of(False)
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
