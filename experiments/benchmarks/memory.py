"""Temporary memory of one policy update at a large vocabulary, from XLA's own account of the compiled programs.

    sh experiments/benchmarks/peers_setup.sh peers
    python experiments/benchmarks/memory.py --tunix-python peers/tunix/bin/python

Nothing runs: the programs are compiled for this machine's CPU and asked what they need beside parameters, optimizer
state and batch. "full logits" is the plain layout with a head that makes all logits and leaves the rest to
`jax.nn.log_softmax` and autodiff; "kept logits" is our own head with room to keep them all. 2 layers of width 256,
vocabulary 151,936, 16 sequences of 64 + 512 tokens, float32, no activation checkpointing but for grpo_jax's
`model.remat` "dots".
"""

import argparse
import os
import sys

from turns import machine, write_section
from update import HERE, Cell, model, start

from grpo_jax import scratch

CELL = Cell("", model(2, 256, 688, 4, 2, 151_936), prompts=2, group_size=8, prompt=64, completion=512)


def main() -> None:
    """Compiles, compares and writes the README's section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tunix-python", help="python of an environment with google-tunix 0.1.7")
    options = parser.parse_args()
    pythons = dict.fromkeys(("group", "plain", "kept logits", "full logits"), sys.executable)
    pythons |= {"tunix": options.tunix_python} if options.tunix_python else {}
    load, needed = os.getloadavg()[0], {}
    with scratch.folder() as parent:
        folder = parent / "model"
        CELL.write(folder)
        for system, python in pythons.items():
            (worker,) = start({system: python})
            worker.ask(open=str(folder))
            needed[system] = worker.ask(temporary_bytes=True)
            worker.close()
    lines = [
        f"| {system} | {size / 2**20:,.0f} | {size / needed['group']:.1f} | {size / needed['plain']:.1f} |"
        for system, size in needed.items()
    ]
    table = ["| update | temporaries, MiB | times group's | times plain's |", "|---|---|---|---|", *lines]
    text = "\n".join([machine("python experiments/benchmarks/memory.py …", load), "", *table])
    print(text)
    write_section(HERE / "README.md", "memory", text)


if __name__ == "__main__":
    main()
