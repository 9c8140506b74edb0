"""A process of two that take the steps of `combinations` by name: FOLDER CUT... COORDINATOR PROCESS.

The first writes gradients, parameters and metrics of each to FOLDER/CUT.npz.
"""

import sys
from pathlib import Path

import jax
import numpy as np

from grpo_jax.config import DistributedConfig
from grpo_jax.training import hosts
from tests.training import combinations


def run(folder: str, *arguments: str) -> None:
    *names, coordinator, process = arguments
    hosts.connect(DistributedConfig(True, coordinator, 2, int(process)))
    cuts = {str(cut): cut for cut in combinations.ALL}
    policy = combinations.make_policy()
    for name in names:
        leaves, metrics = combinations.step(policy, cuts[name])
        if jax.process_index() == 0:
            named = {f"leaf_{i:03d}": leaf for i, leaf in enumerate(leaves)}
            np.savez(Path(folder) / f"{name}.npz", **named, **metrics)


if __name__ == "__main__":
    run(*sys.argv[1:])
