"""One policy update beside Tunix 0.1.7 and TRL 1.16.0: same weights, batch, loss, dtype and optimizer.

    sh experiments/benchmarks/peers_setup.sh peers
    python experiments/benchmarks/update.py --tunix-python peers/tunix/bin/python --trl-python peers/trl/bin/python

First every system writes its loss and gradients, and a difference of more than 1e-4 of any leaf's norm ends the
comparison. Then they take turns (`turns.py`), each step being loss, gradient and AdamW, no KL term, float32. The rate
of a bare matmul is measured in every round; useful FLOPs are those of the matmuls with each prompt computed once and
nothing computed twice, whoever does more. Completions all have one length; token counts are equal. Tunix and TRL
compute no entropy gradient and fewer diagnostics than grpo_jax does; both are run without activation checkpointing,
and grpo_jax keeps all matrix products but attention's (`model.remat` "dots"), which is faster than to keep everything:
memory a program has not touched before costs time. CPU figures say nothing of accelerators.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from flax import nnx
from turns import Worker, machine, ratios, spread, write_section

from grpo_jax import scratch
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.exporting import export_model
from grpo_jax.models.tokenizers import CharacterTokenizer
from grpo_jax.training import flops

HERE = Path(__file__).parent
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Cell:
    """A model and a batch."""

    name: str
    model: ModelConfig
    prompts: int
    group_size: int
    prompt: int
    completion: int

    def write(self, folder: Path) -> None:
        """Random weights as a Transformers folder, and a random batch."""
        export_model(folder, Decoder(self.model, rngs=nnx.Rngs(0)), CharacterTokenizer())
        random = np.random.default_rng(0)
        rows = self.prompts * self.group_size
        prompts = random.integers(3, self.model.vocab_size, (self.prompts, self.prompt))
        np.savez(
            folder / "batch.npz",
            prompt_ids=np.repeat(prompts, self.group_size, axis=0).astype(np.int32),
            completion_ids=random.integers(3, self.model.vocab_size, (rows, self.completion)).astype(
                np.int32
            ),
            advantages=random.normal(size=rows).astype(np.float32),
            group_size=self.group_size,
        )

    @property
    def useful_flops(self) -> float:
        """Matmul FLOPs of one update that cannot be avoided."""
        work = flops.group_work(
            self.model, prompt=self.prompt, completion=self.completion, group_size=self.group_size
        )
        return self.prompts * flops.training(work, frozen_base=False)


def model(layers: int, width: int, mlp: int, heads: int, kv_heads: int, vocab: int) -> ModelConfig:
    """A Llama of this size, tied embeddings, float32. Tunix 0.1.7's Llama has this rope_theta whatever it is given."""
    return ModelConfig(
        vocab_size=vocab,
        num_layers=layers,
        width=width,
        mlp_width=mlp,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width // heads,
        norm_eps=1e-5,
        rope_theta=1_000_000.0,
    )


CELLS = {
    "small": Cell(
        "13M parameters, V 32,000, 2 x 8 x (64+128)", model(6, 256, 688, 4, 2, 32_000), 2, 8, 64, 128
    ),
    "smollm2": Cell("SmolLM2's shape, 2 x 8 x (64+64)", model(30, 576, 1536, 9, 3, 49_152), 2, 8, 64, 64),
    "tiny": Cell(
        "2 layers, V 512, 2 x 4 x (16+16), to try the script", model(2, 64, 128, 4, 2, 512), 2, 4, 16, 16
    ),
}


def start(pythons: Mapping[str, str]) -> list[Worker]:
    """A worker for each system; ours finds the package whether it is installed or not."""
    ours = {"PYTHONPATH": str(HERE.parent.parent)}
    return [
        Worker(
            HERE / "update_systems.py",
            system,
            python=python,
            environment=ours if python == sys.executable else None,
        )
        for system, python in pythons.items()
    ]


def compare_gradients(workers: list[Worker], folder: Path) -> str:
    """Every system's loss and gradients against the plain layout's; the largest difference of each.

    Raises:
        SystemExit: one is off by more than TOLERANCE of a leaf's norm.
    """
    losses, found = {}, {}
    for worker in workers:
        file = folder / f"{worker.system}.npz"
        losses[worker.system] = worker.ask(gradients=str(file))
        found[worker.system] = np.load(file)
    ours, notes = found["plain"], []
    for system, theirs in found.items():
        if set(theirs) != set(ours):
            sys.exit(f"{system} has gradients of other parameters: {sorted(set(theirs) ^ set(ours))[:3]}")
        off = max(np.linalg.norm(theirs[n] - ours[n]) / np.linalg.norm(ours[n]) for n in ours)
        if not off < TOLERANCE:
            sys.exit(
                f"{system}'s gradients are off by {off:.1e} of a leaf's norm: their speeds are not comparable"
            )
        notes.append(f"{system} {losses[system]:+.6f}, {off:.0e}")
    return "loss, and largest difference of a gradient in its leaf's norm: " + "; ".join(notes)


def run(cell: Cell, workers: list[Worker], rounds: int) -> list[str]:
    """The table of one cell."""
    with scratch.folder() as parent:
        folder = parent / "model"
        cell.write(folder)
        for worker in workers:
            worker.ask(open=str(folder))
        parity = compare_gradients(workers, folder)
        print(parity, flush=True)
        first = {worker.system: worker.ask(step=True) for worker in workers}
        seconds, peaks = {worker.system: [] for worker in workers}, []
        for _ in range(rounds):
            peaks.append(workers[0].ask(matmul=True))
            for worker in workers:  # the first step of a turn finds caches and memory as another left them
                worker.ask(step=True)
                seconds[worker.system].append(worker.ask(step=True))
            print(
                {s: f"{v[-1]:.2f} s" for s, v in seconds.items()},
                f"{peaks[-1] / 1e9:.0f} GFLOP/s",
                flush=True,
            )
    lines = [
        f"**{cell.name}**: {cell.useful_flops / 1e9:.0f} GFLOP useful; matmul {spread([p / 1e9 for p in peaks])} "
        f"GFLOP/s; {rounds} rounds, in each the second of two steps; {parity}.",
        "",
        "| system | first step (compiles), s | step, s | times ours (group) | useful FLOP/s over matmul's |",
        "|---|---|---|---|---|",
    ]
    for system, values in seconds.items():
        share = [cell.useful_flops / value / peak for value, peak in zip(values, peaks, strict=True)]
        lines.append(
            f"| {system} | {first[system]:.1f} | {spread(values)} | {spread(ratios(values, seconds['group']))} "
            f"| {statistics.median(share):.0%} |"
        )
    return [*lines, ""]


def main() -> None:
    """Measures the cells asked for and writes the README's section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=["small", "smollm2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tunix-python", help="python of an environment with google-tunix 0.1.7")
    parser.add_argument("--trl-python", help="python of an environment with trl 1.16.0")
    parser.add_argument("--dry", action="store_true", help="print, and leave the README as it is")
    options = parser.parse_args()
    pythons = {"group": sys.executable, "plain": sys.executable}
    pythons |= {"tunix": options.tunix_python} if options.tunix_python else {}
    pythons |= {"trl": options.trl_python} if options.trl_python else {}
    load, lines = os.getloadavg()[0], []
    for name in options.cells:
        workers = start(pythons)
        lines += run(CELLS[name], workers, options.rounds)
        for worker in workers:
            worker.close()
    command = f"python experiments/benchmarks/update.py --cells {' '.join(options.cells)} --rounds {options.rounds} …"
    text = "\n".join([machine(command, load), "", *lines])
    print(text)
    if not options.dry:
        write_section(HERE / "README.md", "update", text)


if __name__ == "__main__":
    main()
