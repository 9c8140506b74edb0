"""Tokens per second of the sampling engine beside Transformers' `generate` and Tunix's vanilla sampler.

    python experiments/benchmarks/sampler.py                              # this package and Transformers
    python experiments/benchmarks/sampler.py --tunix-python v/bin/python  # and Tunix

Tunix needs an environment of its own (its pins would bind ours):

    python3.11 -m venv v && v/bin/pip install google-tunix==0.1.7

Each system runs in a process of its own that stays warm, and the processes take turns, so that a busy machine
slows all of them alike: read the ratios, which are of neighbouring runs, and their spread. On a machine that
others use, `--one-core` gives each system one thread and compares the processor time it took, as threads that
wait for one another suffer from company out of all proportion (PyTorch's most). The model has
SmolLM2-135M's shape in float32 with random weights; no token stops, so all sample the same number of tokens.
Ragged completions have log-normal lengths (median 24, sigma 0.8, at most 192). Transformers gets every prompt
G times, as TRL passes them. Times are of whole calls: prefill and decoding. CPU figures say nothing of TPUs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

VOCABULARY, LAYERS, WIDTH, MLP, HEADS, KV_HEADS, HEAD_DIM = 49152, 30, 576, 1536, 9, 3, 64
NEW_TOKENS, LONGEST = 32, 192
ONE_CORE = "SAMPLER_BENCHMARK_ONE_CORE"


@dataclass(frozen=True)
class Cell:
    """One workload: `completions` in all, from completions / group_size prompts."""

    completions: int
    group_size: int
    prompt: int
    ragged: bool

    @property
    def name(self) -> str:
        lengths = "ragged" if self.ragged else f"{NEW_TOKENS} tokens"
        return f"{self.completions} x {lengths}, prompt {self.prompt}, G={self.group_size}"

    def prompts(self) -> np.ndarray:
        return np.random.default_rng(0).integers(3, 1000, (self.completions // self.group_size, self.prompt))

    def lengths(self) -> np.ndarray:
        if not self.ragged:
            return np.full(self.completions, NEW_TOKENS)
        drawn = np.exp(np.random.default_rng(1).normal(np.log(24), 0.8, self.completions))
        return np.clip(drawn.round(), 1, LONGEST).astype(int)


CELLS = [
    Cell(64, 1, 64, False),
    Cell(8, 1, 64, False),
    Cell(64, 8, 64, False),
    Cell(64, 8, 64, True),
    Cell(64, 8, 512, True),
]


def native():
    """This package, 64 slots."""
    import jax
    from flax import nnx

    from grpo_jax.models.config import ModelConfig
    from grpo_jax.models.decoder import Decoder
    from grpo_jax.rollout import NativeEngine, Sampling

    config = ModelConfig(
        vocab_size=VOCABULARY,
        num_layers=LAYERS,
        width=WIDTH,
        mlp_width=MLP,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
    )
    graphdef, params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
    engines = {}

    def generate(cell: Cell, seed: int) -> None:
        lengths = cell.lengths()
        if cell not in engines:
            engines[cell] = NativeEngine(graphdef, max_prompt_length=cell.prompt, slots=64)
            engines[cell].load(params)
        rollout = engines[cell].generate(
            cell.prompts().tolist(),
            sampling=Sampling(max_tokens=int(lengths.max()), group_size=cell.group_size),
            key=jax.random.key(seed),
            max_tokens=lengths.reshape(-1, cell.group_size),
        )
        assert (rollout.completion_lengths == lengths).all()

    return generate


def transformers():
    """Transformers' generate, eager attention's default replacement (SDPA), dynamic cache."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=LAYERS,
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    model = LlamaForCausalLM(config).eval()

    class Lengths(StoppingCriteria):
        def __init__(self, prompt, lengths):
            self.ends = prompt + torch.tensor(lengths)

        def __call__(self, input_ids, scores, **kwargs):
            return input_ids.shape[1] >= self.ends

    def generate(cell: Cell, seed: int) -> None:
        torch.manual_seed(seed)
        ids = torch.tensor(np.repeat(cell.prompts(), cell.group_size, axis=0))
        lengths = cell.lengths()
        with torch.no_grad():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=int(lengths.max()),
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([Lengths(cell.prompt, lengths)]),
            )

    return generate


def tunix():
    """Tunix's vanilla sampler. Without lengths per row, a ragged batch runs to the longest, as it would."""
    from flax import nnx
    from tunix.generate.sampler import CacheConfig, Sampler
    from tunix.models.llama3.model import Llama3, ModelConfig

    config = ModelConfig(
        num_layers=LAYERS,
        vocab_size=VOCABULARY,
        embed_dim=WIDTH,
        hidden_dim=MLP,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        num_kv_heads=KV_HEADS,
        rope_theta=10_000,
        norm_eps=1e-6,
        weight_tying=True,
    )
    model = Llama3(config, rngs=nnx.Rngs(0))

    class Ids:
        """A tokenizer whose text is the ids themselves."""

        def encode(self, text):
            return [int(word) for word in text.split()]

        def decode(self, ids):
            return ""

        def bos_id(self):
            return 1

        def eos_id(self):
            return 2

        def pad_id(self):
            return 0

    samplers = {}

    def generate(cell: Cell, seed: int) -> None:
        steps = int(cell.lengths().max())
        size = cell.prompt + 1 + steps
        if cell not in samplers:
            samplers[cell] = Sampler(model, Ids(), CacheConfig(size, LAYERS, KV_HEADS, HEAD_DIM))
        prompts = np.repeat(cell.prompts()[:, 1:], cell.group_size, axis=0)  # it adds the BOS itself
        samplers[cell](
            [" ".join(str(token) for token in row) for row in prompts],
            max_generation_steps=steps,
            max_prompt_length=cell.prompt,
            eos_tokens=[VOCABULARY - 1],
            forbidden_tokens=[VOCABULARY - 1],
            temperature=1.0,
            top_p=1.0,
            seed=seed,
        )

    return generate


SYSTEMS = {"native": native, "transformers": transformers, "tunix": tunix}


def work(system: str) -> None:
    """A worker: one cell and seed per line in, seconds out (of the processor, when there is one thread)."""
    clock = time.process_time if os.environ.get(ONE_CORE) else time.perf_counter
    generate = SYSTEMS[system]()
    for line in sys.stdin:
        request = json.loads(line)
        begin = clock()
        generate(Cell(**request["cell"]), request["seed"])
        print(json.dumps(clock() - begin), flush=True)


class Worker:
    """A warm process of one system."""

    def __init__(self, system: str, python: str, *, one_core: bool):
        environment = {**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
        if one_core:
            environment |= {ONE_CORE: "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        self.process = subprocess.Popen(
            [python, os.path.abspath(__file__), "--work", system],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def seconds(self, cell: Cell, seed: int) -> float:
        self.process.stdin.write(json.dumps({"cell": asdict(cell), "seed": seed}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def memory_floor(cell: Cell) -> str:
    """What a decode step has to read, at the very least, per token: parameters and keys and values once."""
    parameters = 4 * (
        VOCABULARY * WIDTH + LAYERS * (2 * WIDTH * (WIDTH + KV_HEADS * HEAD_DIM) + 3 * WIDTH * MLP)
    )
    per_token = 4 * 2 * LAYERS * KV_HEADS * HEAD_DIM
    prompts = cell.completions // cell.group_size * cell.prompt * per_token
    own = cell.lengths().mean() / 2 * cell.completions * per_token
    total = (parameters + prompts + own) / cell.completions
    return f"{total / 1e6:.1f} MB a token ({parameters / cell.completions / 1e6:.1f} of them parameters)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", type=int, nargs="*", default=range(len(CELLS)), help="indices into CELLS")
    parser.add_argument("--one-core", action="store_true", help="one thread each, processor time")
    parser.add_argument("--tunix-python", help="python of an environment with google-tunix")
    parser.add_argument("--work", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work)
    pythons = {"native": sys.executable, "transformers": sys.executable}
    if options.tunix_python:
        pythons["tunix"] = options.tunix_python
    workers = {
        system: Worker(system, python, one_core=options.one_core) for system, python in pythons.items()
    }
    for cell in (CELLS[i] for i in options.cells):
        tokens = int(cell.lengths().sum())
        print(f"\n{cell.name}: {tokens} tokens; a step must read {memory_floor(cell)}", flush=True)
        first = {system: worker.seconds(cell, 0) for system, worker in workers.items()}
        print("  first call, compilation included: " + ", ".join(f"{s} {t:.1f} s" for s, t in first.items()))
        seconds = {system: [] for system in workers}
        for seed in range(1, options.rounds + 1):
            for system, worker in workers.items():
                seconds[system].append(worker.seconds(cell, seed))
        for system, times in seconds.items():
            ratios = [other / ours for other, ours in zip(times, seconds["native"], strict=True)]
            rate, ratio = tokens / statistics.median(times), statistics.median(ratios)
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(
                f"  {system:12s} {rate:7.1f} tokens/s; native is {ratio:.2f}x as fast ({spread})", flush=True
            )
    for worker in workers.values():
        worker.close()
    return None


if __name__ == "__main__":
    main()
