"""What a program costs at best: FLOPs in closed form, bytes moved, and the roofline over them.

The time is the largest of three: arithmetic at the chip's peak, parameters and state through its memory, collectives
through one axis of its interconnect. All three are lower bounds, and they are taken to overlap completely; so the MFU is
an upper bound of what a run can reach.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from grpo_jax import amounts
from grpo_jax.config import Config
from grpo_jax.planning.targets import Target
from grpo_jax.training import flops, sharding
from grpo_jax.training.shapes import Shapes, bytes_per_device


class Cost(NamedTuple):
    """One run of a program: an optimizer step, a pass over a rollout, or a decode step."""

    useful_flops: float
    """On all devices, without padding, recomputation or masked-out scores, every sequence at its full length. A prompt
    counts as often as the layout computes it."""
    flops: float
    """Of one device, as executed."""
    hbm_bytes: float
    """Parameters, gradients, moments and cache that one device reads and writes; activations are left out."""
    network_bytes: float | None
    """Sent by one device; None before compilation."""
    tokens: int
    """Completion tokens that it is for."""


class Roofline(NamedTuple):
    """Seconds at least, and the share of peak FLOP/s that useful work then has."""

    compute_seconds: float
    memory_seconds: float
    network_seconds: float
    seconds: float
    bound: str
    mfu: float
    tokens_per_second: float


def roofline(cost: Cost, target: Target, *, devices: int) -> Roofline:
    """The roofline of a cost on `devices` devices of the target."""
    chip = target.chip
    times = {
        "compute": cost.flops / (chip.peak_tflops * 1e12),
        "memory": cost.hbm_bytes / (chip.hbm_gbps * 1e9),
        "network": (cost.network_bytes or 0.0) / (chip.link_gbps * 1e9),
    }
    bound = max(times, key=times.get)
    seconds = times[bound]
    mfu = cost.useful_flops / (devices * chip.peak_tflops * 1e12 * seconds)
    return Roofline(*times.values(), seconds, bound, mfu, cost.tokens / seconds)


def traffic(collectives: Iterable[Mapping[str, Any]] | None) -> float | None:
    """Bytes that a device sends for these collectives."""
    return None if collectives is None else sum(item["traffic"] for item in collectives)


def costs(config: Config, shapes: Shapes, mesh: Mesh | AbstractMesh) -> dict[str, Cost]:
    """Costs of every program, the network left out."""
    model, rollout, built = shapes.architecture, config.rollout, shapes.built
    micro, tensor = built.micro_batches, mesh.shape[sharding.TENSOR]
    rows = amounts.rows_per_device(config, shards=sharding.row_shards(mesh))
    groups, mini_batches = amounts.groups_per_step(config), amounts.mini_batches(config)
    sequences = groups * rollout.group_size
    useful, executed = useful_work(config, shapes, groups=groups), executed_work(config, shapes, rows=rows)
    frozen_base = model.lora is not None
    # Every device reads the gathered weights of its tensor shard, once for each micro-batch and pass.
    weights = parameters(shapes) * jnp.dtype(model.dtype).itemsize / tensor
    own, moments = bytes_per_device(shapes.state.params), bytes_per_device(shapes.state.optimizer)
    passes = 2 if model.remat == "none" else 3
    step = flops.training(executed, frozen_base=frozen_base) + recomputed(executed, config, shapes, rows=rows)
    if built.objective.transform is not None:
        step += executed.total  # its constants come from a pass of their own

    return {
        "update": Cost(
            useful_flops=flops.training(useful, frozen_base=frozen_base),
            flops=micro * step / tensor,
            hbm_bytes=micro * (passes * weights + 3 * own) + 2 * (own + moments),
            network_bytes=None,
            tokens=sequences * rollout.max_completion_length,
        ),
        "log_probs": Cost(
            useful_flops=mini_batches * useful.total,
            flops=mini_batches * micro * executed.total / tensor,
            hbm_bytes=mini_batches * micro * weights,
            network_bytes=None,
            tokens=mini_batches * sequences * rollout.max_completion_length,
        ),
        "decode": _decode_cost(config, shapes, mesh),
    }


def _decode_cost(config: Config, shapes: Shapes, mesh: Mesh | AbstractMesh) -> Cost:
    """One step of all slots, halfway through their completions."""
    rollout = config.rollout
    if "decode" not in shapes.programs:
        return Cost(0.0, 0.0, 0.0, None, 0)
    parts = shapes.programs["decode"].arguments
    slots = parts["slots"].slots.position.shape[0]
    keys = rollout.max_prompt_length + rollout.max_completion_length / 2
    token = flops.forward(shapes.architecture, tokens=1, pairs=keys, head_tokens=1)
    return Cost(
        useful_flops=slots * token.total,
        flops=slots * token.total / mesh.size,
        hbm_bytes=bytes_per_device(parts["sampler's weights"]) + bytes_per_device(parts["cache"]),
        network_bytes=None,
        tokens=slots,
    )


def useful_work(config: Config, shapes: Shapes, *, groups: int) -> flops.Forward:
    """The forward pass of an optimizer step on all devices, every sequence at its full length."""
    rollout = config.rollout
    length = {"prompt": rollout.max_prompt_length, "completion": rollout.max_completion_length}
    if shapes.built.layout != "group":
        one, count = flops.plain_work(shapes.architecture, **length), groups * rollout.group_size
    else:
        one = flops.group_work(shapes.architecture, **length, group_size=rollout.group_size)
        count = groups
    return flops.Forward(*(count * part for part in one))


def executed_work(config: Config, shapes: Shapes, *, rows: int) -> flops.Forward:
    """The forward pass of one device's micro-batch; einsum attention computes masked scores too, kernels skip them."""
    rollout = config.rollout
    P, T, G = rollout.max_prompt_length, rollout.max_completion_length, rollout.group_size
    if shapes.built.layout != "group":
        tokens, pairs = rows * (P + T), rows * (P + T) ** 2
    else:
        tokens, pairs = rows // G * (P + G * T), rows // G * (P**2 + G * T * (P + T))
    if shapes.attention != "einsum":
        one = flops.causal_pairs(P) + G * (P * T + flops.causal_pairs(T))
        pairs = rows * flops.causal_pairs(P + T) if shapes.built.layout != "group" else rows // G * one
    return flops.forward(shapes.architecture, tokens=tokens, pairs=pairs, head_tokens=rows * T)


def recomputed(work: flops.Forward, config: Config, shapes: Shapes, *, rows: int) -> float:
    """FLOPs that the backward pass does again."""
    blocks = {
        "none": 0.0,
        "dots": work.attention,
        "full": work.projections + work.adapters + work.attention,
    }[shapes.architecture.remat]
    again = shapes.kept_logits < rows * config.rollout.max_completion_length
    return blocks + (work.head if again else 0.0)


def parameters(shapes: Shapes) -> int:
    """Parameters of the model, frozen ones and adapters included."""
    return sum(x.size for x in jax.tree.leaves(shapes.programs["log_probs"].arguments["parameters"]))
