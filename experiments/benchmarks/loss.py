"""What the loss itself costs: compile time, run time, and the token weights' share of a tiny model's update.

    nice -n -5 python experiments/benchmarks/loss.py              # about five minutes on two CPU cores

N = 1024 sequences of up to 4096 tokens in 128 groups. Log-probs are given, so that only the loss is timed;
old log-probs are near them, as from the second update of a rollout. Everything is timed in turns, round after
round, so that a busy machine slows all alike; the table gives the median and the range over rounds, and is
written between the markers in the README beside this file.

The update is the training program's own, gradient and optimizer included, of one layer of width 64 over 64
tokens of vocabulary. At N = 1024 and T = 4096 it would run for many minutes, so there one micro-batch of two
rows is timed and counted N/2 times: the step does the same work for each.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from grpo_jax.losses import aggregation, dfpo, objective, recipes
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import sharding
from grpo_jax.training.log_probs import make_log_probs
from grpo_jax.training.update import make_update
from grpo_jax.types import Batch, TrainState

README = Path(__file__).with_name("README.md")
START, END = "<!-- loss: start -->", "<!-- loss: end -->"
N, T, G, PROMPT = 1024, 4096, 8, 8
MODEL = ModelConfig(
    vocab_size=64,
    num_layers=1,
    width=64,
    mlp_width=128,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    remat="none",
)
METHODS = {
    "grpo": recipes.grpo(),
    "balanced": recipes.balanced(),
    "ha_dw(balanced)": recipes.ha_dw(recipes.balanced()),
    "dapo": recipes.dapo(),
    "gspo": recipes.gspo(),
    "dfpo(token), orth_proj": recipes.dfpo(
        recipes.grpo(aggregation=aggregation.token), transform=dfpo.orth_proj
    ),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--rounds", type=int, default=7, help="how often each function is timed (default: 7)"
    )
    rounds = arguments.parse_args().rounds
    load_before = os.getloadavg()[0]
    functions = {}
    for name, method in METHODS.items():
        functions |= {(name, what): call for what, call in parts_of_loss(method).items()}
    whole = recipes.balanced()
    functions["update", "small"] = update_of(whole, rows=64, length=256, micro_batches=4)
    functions["weights", "small"] = weights_of(whole, rows=64, length=256)
    functions["update", "two rows"] = update_of(whole, rows=2, length=T, micro_batches=1)
    compiled = {key: compile_times(*call) for key, call in functions.items()}
    times = in_turns({key: call for key, (call, _) in compiled.items()}, rounds)
    load_after = os.getloadavg()[0]

    lines = [
        "| method | weights: compile, s | run, ms | loss + gradient: compile, s | run, ms |",
        "|---|---|---|---|---|",
    ]
    for name in METHODS:
        cells = [
            cell
            for what in ("weights", "loss")
            for cell in (summary(compiled[name, what][1]), summary(times[name, what], 1e3))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| update of a one-layer model, width 64 | update, s | weights, ms | weights' share |",
        "|---|---|---|---|",
    ]
    for title, update, weights, scale in (
        ("N=64, T=256, 4 micro-batches", times["update", "small"], times["weights", "small"], 1),
        (
            f"N={N}, T={T} (two rows timed, times {N // 2})",
            times["update", "two rows"],
            times["balanced", "weights"],
            N // 2,
        ),
    ):
        shares = [100 * w / (scale * u) for w, u in zip(weights, update, strict=True)]
        lines.append(
            f"| {title} | {summary(update, scale)} | {summary(weights, 1e3)} | {summary(shares)} % |"
        )
    write(
        [
            f"Machine: {processor()}, {os.cpu_count()} cores, {platform.system()}; "
            f"1-minute load {load_before:.1f} before, {load_after:.1f} after.",
            f"Python {platform.python_version()}, jax {jax.__version__}, {date.today()}; "
            f"`nice -n -5 python experiments/benchmarks/loss.py --rounds {rounds}`. "
            "Medians, with the range in brackets.",
            "",
            *lines,
        ]
    )


def inputs(rows: int, length: int):
    """Ragged completions in groups of G, binary rewards, log-probs a little away from the old ones."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, length + 1, rows)
    old = jnp.asarray(-random.exponential(1.0, (rows, length)), jnp.float32)
    return {
        "log_probs": old + jnp.asarray(random.normal(0, 0.02, old.shape), jnp.float32),
        "old_log_probs": old,
        "loss_mask": jnp.arange(length) < lengths[:, None],
        "rewards": jnp.asarray(random.integers(0, 2, rows), jnp.float32),
        "group_ids": jnp.arange(rows) // G,
    }


def parts_of_loss(method: objective.Objective):
    """(function, arguments) of the weights and of the loss with its gradient, at N and T."""
    given = inputs(N, T)
    rewards, group_ids = given.pop("rewards"), given.pop("group_ids")
    groups = {"group_ids": group_ids, "num_groups": N // G}
    advantages, _, _ = objective.advantages(
        method, rewards=rewards, history=objective.init_history(method), **groups
    )
    rows = {"loss_mask": given["loss_mask"], "advantages": advantages}
    make_weights, arguments = weights_of(method, rows=N, length=T)
    weights = jax.jit(make_weights)(*arguments)

    def loss(log_probs, old_log_probs, rows, weights):
        rows = rows | {"old_log_probs": old_log_probs, "weights": weights}
        now = jax.lax.stop_gradient(log_probs)
        constants = objective.group_constants(method, log_probs=now, **rows, **groups)

        def value(log_probs):
            return objective.loss(method, log_probs=log_probs, group_constants=constants, **rows)

        return jax.value_and_grad(value, has_aux=True)(log_probs)

    return {
        "weights": (make_weights, arguments),
        "loss": (loss, (given["log_probs"], given["old_log_probs"], rows, weights)),
    }


def weights_of(method: objective.Objective, *, rows: int, length: int):
    """(function, arguments) of the token weights."""
    given = inputs(rows, length)
    groups = {"group_ids": given["group_ids"], "num_groups": -(-rows // G)}
    history = objective.init_history(method)
    advantages, _, _ = objective.advantages(method, rewards=given["rewards"], history=history, **groups)

    def weights(advantages, loss_mask):
        return objective.weights(method, advantages=advantages, loss_mask=loss_mask, **groups)

    return weights, (advantages, given["loss_mask"])


def update_of(method: objective.Objective, *, rows: int, length: int, micro_batches: int):
    """(function, arguments) of one whole optimizer step of the training program."""
    given = inputs(rows, length)
    graphdef, params = nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))
    optimizer = optax.adamw(1e-4)
    step = make_update(
        log_probs=make_log_probs(graphdef, temperature=1.0, kept_logits=1024),
        objective=method,
        optimizer=optimizer,
        mesh=sharding.make_mesh(1),
        num_groups=-(-rows // G),
        micro_batches=micro_batches,
        vocab_size=MODEL.vocab_size,
    )
    state = TrainState.first(params=params, optimizer=optimizer.init(params), key=jax.random.key(0))
    lengths = given["loss_mask"].sum(1)
    batch = Batch(
        prompt_ids=jnp.ones((rows, PROMPT), jnp.int32),
        prompt_lengths=jnp.full(rows, PROMPT),
        completion_ids=jax.random.randint(jax.random.key(1), (rows, length), 0, MODEL.vocab_size),
        completion_lengths=lengths,
        loss_mask=given["loss_mask"],
        group_ids=given["group_ids"],
        advantages=given["rewards"] - 0.5,
        sampler_log_probs=given["old_log_probs"],
        sampler_full_log_probs=given["old_log_probs"],
        old_log_probs=given["old_log_probs"],
    )
    return lambda state, batch: step(state, batch), (state, batch)


def compile_times(function: Callable, arguments: tuple, repeats: int = 3) -> tuple[Callable, list[float]]:
    """A call of the compiled function on its arguments, and the seconds that tracing and compiling took."""
    seconds = []
    for _ in range(repeats):
        jax.clear_caches()
        start = time.perf_counter()
        compiled = jax.jit(function).lower(*arguments).compile()
        seconds.append(time.perf_counter() - start)
    return lambda: jax.block_until_ready(compiled(*arguments)), seconds


def in_turns(calls: dict, rounds: int) -> dict:
    """Seconds of each call in each round, after one round that is not counted.

    A short call counts by the fastest of five in a row, as one preemption would outweigh it.
    """
    seconds = {key: [] for key in calls}
    for counted in [False] + [True] * rounds:
        for key, call in calls.items():
            taken = timed(call)
            if taken < 0.1:
                taken = min(taken, *(timed(call) for _ in range(4)))
            if counted:
                seconds[key].append(taken)
    return seconds


def timed(call: Callable[[], object]) -> float:
    """The seconds one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def summary(values: list[float], scale: float = 1.0) -> str:
    """Median and range, three digits each."""
    low, middle, high = (f"{scale * x:.3g}" for x in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}–{high})"


def processor() -> str:
    """The processor's name as the system gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write(lines: list[str]) -> None:
    """The lines between the markers of the README, and on the screen."""
    text = README.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    body = "\n".join(lines)
    README.write_text(f"{before}{START}\n{body}\n{END}{after}")
    print(body)


if __name__ == "__main__":
    main()
