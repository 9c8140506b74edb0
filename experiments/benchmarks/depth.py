"""Compile time of the update at 4 and at 28 layers, which are scanned: it should not grow with depth.

    python experiments/benchmarks/depth.py

Width 256, vocabulary 32,000, 16 sequences of 64 + 128 tokens, float32; tracing, lowering and compilation, in turns.
"""

import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from turns import machine, ratios, spread, write_section
from update import HERE, Cell, model
from update_systems import native

from grpo_jax import scratch

ROUNDS = 5


def main() -> None:
    """Compiles in turns and writes the README's section."""
    load, compile_of = os.getloadavg()[0], {}
    with scratch.folder() as parent:
        for layers in (4, 28):
            folder = parent / str(layers)
            Cell("", model(layers, 256, 688, 4, 2, 32_000), 2, 8, 64, 128).write(folder)
            compile_of[layers] = native(folder, np.load(folder / "batch.npz"), layout="group").temporary_bytes
        seconds = {layers: [] for layers in compile_of}
        for _ in range(ROUNDS):
            for layers, compile_update in compile_of.items():
                jax.clear_caches()
                begin = time.perf_counter()
                compile_update()
                seconds[layers].append(time.perf_counter() - begin)
    lines = [f"| {layers} layers | {spread(values)} |" for layers, values in seconds.items()]
    text = "\n".join(
        [
            machine("python experiments/benchmarks/depth.py", load),
            "",
            "| update | compile time, s |",
            "|---|---|",
            *lines,
            "",
            f"28 layers take {spread(ratios(seconds[28], seconds[4]))} times as long as 4.",
        ]
    )
    print(text)
    write_section(HERE / "README.md", "depth", text)


if __name__ == "__main__":
    main()
