"""Tokens per second of the sampling engine beside Transformers' `generate` and Tunix's vanilla sampler.

    sh experiments/benchmarks/peers_setup.sh peers
    python experiments/benchmarks/sampler.py --tunix-python peers/tunix/bin/python

The systems take turns (`turns.py`). The model has SmolLM2-135M's shape in float32 with random weights; no token stops,
so all sample the same number of tokens. Ragged completions have log-normal lengths (median 24, sigma 0.8, at most 192).
Transformers gets every prompt G times, which is TRL's path too: its trainer calls `generate` so. Tunix has no lengths
per row, so a ragged batch runs to the longest, as it would. Times are of whole calls: prefill and decoding. CPU figures
say nothing of TPUs.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from turns import Worker, alternate, answer, machine, ratios, spread, write_section

HERE = Path(__file__).parent
VOCABULARY, LAYERS, WIDTH, MLP, HEADS, KV_HEADS, HEAD_DIM = 49152, 30, 576, 1536, 9, 3, 64
NEW_TOKENS, LONGEST = 32, 192


@dataclass(frozen=True)
class Cell:
    """One workload: `completions` in all, from completions / group_size prompts."""

    completions: int
    group_size: int
    prompt: int
    ragged: bool
    new_tokens: int = NEW_TOKENS

    @property
    def name(self) -> str:
        lengths = "ragged" if self.ragged else f"{self.new_tokens} tokens"
        return f"{self.completions} x {lengths}, prompt {self.prompt}, G={self.group_size}"

    def prompts(self) -> np.ndarray:
        return np.random.default_rng(0).integers(3, 1000, (self.completions // self.group_size, self.prompt))

    def lengths(self) -> np.ndarray:
        if not self.ragged:
            return np.full(self.completions, self.new_tokens)
        drawn = np.exp(np.random.default_rng(1).normal(np.log(24), 0.8, self.completions))
        return np.clip(drawn.round(), 1, LONGEST).astype(int)

    def step_bytes(self) -> float:
        """What a decode step has to read, at the very least: parameters, and keys and values so far, once."""
        parameters = 4 * (
            VOCABULARY * WIDTH + LAYERS * (2 * WIDTH * (WIDTH + KV_HEADS * HEAD_DIM) + 3 * WIDTH * MLP)
        )
        per_token = 4 * 2 * LAYERS * KV_HEADS * HEAD_DIM
        prompts = self.completions // self.group_size * self.prompt * per_token
        return parameters + prompts + self.lengths().mean() / 2 * self.completions * per_token


CELLS = [
    Cell(64, 1, 64, False),
    Cell(8, 1, 64, False),
    Cell(64, 8, 64, False),
    Cell(8, 8, 64, False),
    Cell(64, 8, 64, True),
    Cell(64, 8, 512, True),
]


def native():
    """This package, 64 slots; a call answers its decode steps and how many programs it has compiled."""
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

    def generate(cell: Cell, seed: int) -> tuple[int, int]:
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
        return engines[cell].work.steps, len(engines[cell].programs)

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
    """Tunix's vanilla sampler."""
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


def read_rate() -> float:
    """Bytes per second at which all cores together read memory: the best of some sums of 1 GiB."""
    import jax
    import jax.numpy as jnp

    total, x = jax.jit(lambda x: x.sum(axis=1)), jnp.ones((1024, 1 << 18), jnp.float32)

    def once():
        begin = time.perf_counter()
        total(x).block_until_ready()
        return x.nbytes / (time.perf_counter() - begin)

    return max(once() for _ in range(5))


def work(system: str) -> None:
    """Answers {"cell", "seed"} by [seconds, what the system says], and {"read_rate": true}."""
    generate = SYSTEMS[system]()

    def respond(**request):
        if "read_rate" in request:
            return read_rate()
        begin = time.perf_counter()
        said = generate(Cell(**request["cell"]), request["seed"])
        return time.perf_counter() - begin, said

    answer(sys.stdin, respond)


def measure(cell: Cell, workers: list[Worker], rounds: int) -> list[str]:
    """The table of one cell."""
    request, tokens, ours = {"cell": asdict(cell)}, int(cell.lengths().sum()), workers[0]
    first = {worker.system: worker.ask(**request, seed=0)[0] for worker in workers}
    seconds = {worker.system: [] for worker in workers}
    for seed in range(1, rounds + 1):
        for system, ((taken, said),) in alternate(workers, rounds=1, **request, seed=seed).items():
            seconds[system].append(taken)
            steps, programs = said or (steps, programs)
        print(cell.name, {s: f"{v[-1]:.2f} s" for s, v in seconds.items()}, flush=True)
    lines = [
        f"**{cell.name}**: {tokens} tokens in {steps} decode steps, {programs} programs; {rounds} rounds.",
        "",
        "| system | first call (compiles), s | call, s | tokens/s | times ours |",
        "|---|---|---|---|---|",
    ]
    for system, values in seconds.items():
        lines.append(
            f"| {system} | {first[system]:.1f} | {spread(values)} | {tokens / statistics.median(values):.0f} "
            f"| {spread(ratios(values, seconds['native']))} |"
        )
    if not cell.ragged:
        lines += ["", against_memory(cell, ours, seconds["native"], steps)]
    return [*lines, ""]


def against_memory(cell: Cell, ours: Worker, seconds: list[float], steps: int) -> str:
    """How near our decode steps are to reading what they must."""
    prompts_alone = {"cell": asdict(cell) | {"new_tokens": 1}}
    ours.ask(**prompts_alone, seed=0)
    prefill = statistics.median(ours.ask(**prompts_alone, seed=seed)[0] for seed in (1, 2, 3))
    step, rate = (statistics.median(seconds) - prefill) / steps, ours.ask(read_rate=True)
    floor = cell.step_bytes() / rate
    return (
        f"Prompts take {prefill:.2f} s of a native call and a decode step {1e3 * step:.0f} ms. It must read "
        f"{cell.step_bytes() / 1e6:.0f} MB ({cell.step_bytes() / 1e6 / cell.completions:.1f} a token), {1e3 * floor:.0f} "
        f"ms at the {rate / 1e9:.1f} GB/s at which memory was read in the same run."
    )


def main() -> None:
    """Measures the cells asked for and writes the README's section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cells", type=int, nargs="*", default=range(len(CELLS)), help="indices into CELLS")
    parser.add_argument("--tunix-python", help="python of an environment with google-tunix 0.1.7")
    parser.add_argument("--dry", action="store_true", help="print, and leave the README as it is")
    options = parser.parse_args()
    ours = {"PYTHONPATH": str(HERE.parent.parent)}  # the package, installed or not
    workers = [
        Worker(Path(__file__), s, python=sys.executable, environment=ours) for s in SYSTEMS if s != "tunix"
    ]
    if options.tunix_python:
        workers.append(Worker(Path(__file__), "tunix", python=options.tunix_python))
    load, lines = os.getloadavg()[0], []
    for cell in (CELLS[i] for i in options.cells):
        lines += measure(cell, workers, options.rounds)
    for worker in workers:
        worker.close()
    text = "\n".join(
        [machine(f"python experiments/benchmarks/sampler.py --rounds {options.rounds} …", load), "", *lines]
    )
    print(text)
    if not options.dry:
        write_section(HERE / "README.md", "sampler", text)


if __name__ == "__main__":
    work(sys.argv[1]) if sys.argv[1:2] and sys.argv[1] in SYSTEMS else main()
