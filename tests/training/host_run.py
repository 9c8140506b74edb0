"""A process of a run on two hosts: EXPERIMENT OUT COORDINATOR PROCESS.

It trains by the command line, and then takes one step of SGD on a mesh over both hosts, whose gradients the first host
writes to OUT.
"""

import sys

import jax
import numpy as np
from flax import nnx

from grpo_jax.cli import main
from grpo_jax.models.decoder import Decoder
from tests.training import meshes


def run(experiment: str, out: str, coordinator: str, process: str) -> None:
    options = {"coordinator": coordinator, "num_processes": "2", "process_id": process}
    flags = [part for name, value in options.items() for part in (f"--distributed.{name}", value)]
    main(["train", experiment, "--distributed", *flags])
    policy = nnx.split(Decoder(meshes.MODEL, rngs=nnx.Rngs(0)))
    gradients, metrics = meshes.one_step(policy, meshes.make_batch(), shape=(2, 2, 2), micro_batches=2)
    if jax.process_index() == 0:
        leaves = {f"leaf_{i:03d}": leaf for i, leaf in enumerate(jax.tree.leaves(gradients))}
        np.savez(out, **leaves, **metrics)


if __name__ == "__main__":
    run(*sys.argv[1:])
