"""The optimizer steps that one rollout is used for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from grpo_jax import amounts
from grpo_jax.models import lora
from grpo_jax.training import batches, hosts, sharding
from grpo_jax.training.setup import Run
from grpo_jax.types import Batch, Rollout, TrainState

GAP = "sampler/log_prob_gap"
OF_STEPS = ("grad/", "loss/", "update/")
OF_MIXED_GROUPS = ("coupling/", "learning_tax/", "length/", "shared_token/")
"""Prefixes of metrics of whole optimizer steps, and of means over their mixed groups; the others are means over tokens."""


def optimize(
    run: Run, state: TrainState, batch: Batch, rollout: Rollout
) -> tuple[TrainState, Mapping[str, float]]:
    """The optimizer steps of one rollout. The old policy is the one that sampled, whatever the number of steps."""
    hosts.meet()  # the first has been writing since they last did, and who waits in a program waits without end
    options = run.config.update
    groups = amounts.groups_per_step(run.config)
    batch, group_ids = batches.by_group(batch, rollout.group_ids, group_size=run.config.rollout.group_size)
    sampled_with, state = state.sampler_params, replace(state, sampler_params=None)
    if options.old_log_probs == "sampler":
        batch = replace(batch, old_log_probs=batch.sampler_full_log_probs)
    elif sampled_with is not None or run.updates_per_rollout > 1:
        old_params = state.params if sampled_with is None else sampled_with
        batch = replace(batch, old_log_probs=log_probs_under(run, lora.join(old_params, state.frozen), batch))
    if state.ref_params is not None:
        # With LoRA the reference is the same base under the adapters it began with, so there is no second copy of it.
        # A reference in host memory is on the devices for this pass alone.
        reference = lora.join(sharding.to_devices(state.ref_params), state.frozen)
        batch = replace(batch, ref_log_probs=log_probs_under(run, reference, batch))
        del reference
    collected = []
    for _ in range(options.epochs):
        for part in batches.mini_batches(batch, rollout_groups=group_ids, num_groups=groups):
            state, metrics = run.update(state, on_devices(run, part, micro_batches=run.micro_batches))
            collected.append(metrics)
    steps = [jax.device_get(metrics) for metrics in collected]
    metrics = mean_of_steps(steps)
    if options.old_log_probs == "sampler":
        metrics[GAP] = float(steps[0][GAP])  # later the policy is another than the one that sampled
    return state, metrics


def log_probs_under(run: Run, params, batch: Batch) -> np.ndarray:
    """Completion log-probabilities [N, T] of the whole batch, gradient-free."""
    # Without what the pass does not read: one program then serves the old policy and the reference.
    batch = replace(batch, old_log_probs=None, ref_log_probs=None)
    rows = on_devices(run, batch, micro_batches=run.micro_batches * amounts.mini_batches(run.config))
    return sharding.to_host(run.log_prob_pass(params, rows))[: len(batch.group_ids)]


def on_devices(run: Run, batch: Batch, *, micro_batches: int) -> Batch:
    """The rows of `batch` dealt to the devices, with padding rows to make equal shares of every micro-batch."""
    shards = sharding.row_shards(run.mesh)
    padded = sharding.pad_rows(batch, micro_batches * shards * amounts.rows_unit(run.config, shards=shards))
    return sharding.split_rows(padded, run.mesh)


def mean_of_steps(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One value per metric over the optimizer steps of a rollout: the largest of a maximum, else the mean.

    A step counts by what it took its mean over, tokens that train or mixed groups: one that had none says nothing.
    """

    def mean(name: str) -> float:
        values = [m[name] for m in metrics]
        if name.endswith("/max"):
            return np.max(values)
        if name.startswith(OF_STEPS):
            return np.mean(values)
        over = "update/mixed_groups" if name.startswith(OF_MIXED_GROUPS) else "update/trained_tokens"
        counts = [m[over] for m in metrics]
        return np.average(values, weights=counts) if np.sum(counts) else np.mean(values)

    return {name: float(mean(name)) for name in metrics[0]}
