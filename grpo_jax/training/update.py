"""One optimizer step on one mini-batch, the same whatever the micro-batches and devices.

1. Token weights, once for the mini-batch: segment sums per device and one psum. Every division over the batch is in them.
2. Micro-batches under `lax.scan`: each adds the gradient of a plain sum, −Σ w·ℓ, to a local accumulator.
3. One psum of the gradients.
4. Clip, optimizer, and a guard: a non-finite gradient never reaches the parameters.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from grpo_jax.losses import diagnostics
from grpo_jax.losses import objective as objectives
from grpo_jax.losses.diagnostics import Totals, token_means
from grpo_jax.losses.groups import group_rows
from grpo_jax.models import lora
from grpo_jax.training import sharding
from grpo_jax.training.log_probs import LogProbs
from grpo_jax.types import Batch, TrainState

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Float[Array, ""]]]]


def make_update(
    *,
    log_probs: LogProbs,
    objective: objectives.Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    num_groups: int,
    micro_batches: int,
    vocab_size: int,
) -> Step:
    """The jitted policy update of mini-batches of `num_groups` groups with ids in [0, num_groups).

    The returned function donates its state, all but the frozen part. A group may be split between devices and
    micro-batches, a sequence not.
    """
    axis = sharding.axis_name(mesh)
    groups = {"num_groups": num_groups, "axis_name": axis}

    def mini_batch_constants(params: Any, batch: Batch):
        """What the loss needs to know of the whole mini-batch (token weights, DFPO's constants), and its diagnostics."""
        weights = objectives.weights(
            objective,
            advantages=batch.advantages,
            loss_mask=batch.loss_mask,
            group_ids=batch.group_ids,
            **groups,
        )
        if objective.transform is None:
            return (weights, None), diagnose(batch, weights, None)
        now = jax.lax.stop_gradient(
            _over_micro_batches(lambda rows: log_probs(params, rows)[0], batch, micro_batches).reshape(
                batch.completion_ids.shape
            )
        )
        constants = objectives.group_constants(
            objective,
            log_probs=now,
            old_log_probs=now if batch.old_log_probs is None else batch.old_log_probs,
            loss_mask=batch.loss_mask,
            advantages=batch.advantages,
            weights=weights,
            group_ids=batch.group_ids,
            sampler_log_probs=batch.sampler_log_probs if objective.sampler_correction else None,
            **groups,
        )
        return (weights, constants), diagnose(batch, weights, constants.weights)

    def diagnose(batch: Batch, weights: objectives.Weights, constants: Float[Array, "N"] | None):
        return diagnostics.batch_metrics(
            advantages=batch.advantages,
            token_weights=weights.policy,
            loss_mask=batch.loss_mask,
            completion_lengths=batch.completion_lengths,
            groups=group_rows(batch.group_ids, num_groups, axis),
            constants=constants,
        ) | diagnostics.learning_tax(
            batch.completion_ids,
            batch.loss_mask,
            weights.policy,
            batch.advantages,
            vocab_size=vocab_size,
            axis_name=axis,
        )

    def loss_of_rows(params: Any, rows: Batch, constants: Any):
        weights, group_constants = constants
        now, entropy = log_probs(params, rows)
        old = jax.lax.stop_gradient(now) if rows.old_log_probs is None else rows.old_log_probs
        value, totals = objectives.loss(
            objective,
            log_probs=now,
            old_log_probs=old,
            loss_mask=rows.loss_mask,
            advantages=rows.advantages,
            weights=weights,
            entropy=entropy,
            ref_log_probs=rows.ref_log_probs,
            sampler_log_probs=rows.sampler_log_probs if objective.sampler_correction else None,
            group_constants=group_constants,
        )
        gap = {"sampler/log_prob_gap": jnp.abs(old - rows.sampler_full_log_probs)}
        return value, totals._replace(means={**totals.means, **token_means(gap, rows.loss_mask)})

    return _make_step(
        constants_of_batch=mini_batch_constants,
        loss_of_rows=loss_of_rows,
        optimizer=optimizer,
        mesh=mesh,
        micro_batches=micro_batches,
    )


def make_supervised_update(
    *, log_probs: LogProbs, optimizer: optax.GradientTransformation, mesh: Mesh, micro_batches: int
) -> Step:
    """The jitted warm-start update: mean negative log-likelihood per token of the completions."""

    def token_weight(params: Any, batch: Batch):
        del params
        weight = 1.0 / jnp.maximum(sharding.psum(batch.loss_mask.sum(), mesh), 1)
        return jnp.full(batch.group_ids.shape, weight), {}

    def loss_of_rows(params: Any, rows: Batch, weight: Float[Array, "n"]):
        now = jnp.where(rows.loss_mask, log_probs(params, rows)[0], 0.0)
        totals = Totals(means=token_means({"warm_start/loss": -now}, rows.loss_mask), sums={}, maxima={})
        return -(weight[:, None] * now).sum(), totals

    return _make_step(
        constants_of_batch=token_weight,
        loss_of_rows=loss_of_rows,
        optimizer=optimizer,
        mesh=mesh,
        micro_batches=micro_batches,
    )


def make_log_prob_pass(*, log_probs: LogProbs, mesh: Mesh, micro_batches: int):
    """A jitted function (params, batch) -> log_probs [N, T], without a gradient, micro-batch by micro-batch."""

    def shard(params: Any, batch: Batch):
        out = _over_micro_batches(lambda rows: log_probs(params, rows)[0], batch, micro_batches)
        return out.reshape(batch.completion_ids.shape)

    spec = PartitionSpec(sharding.DATA)
    return jax.jit(sharding.per_shard(shard, mesh, (PartitionSpec(), spec), spec))


def make_gradient(*, constants_of_batch, loss_of_rows, mesh: Mesh, micro_batches: int):
    """A function (params, frozen, batch) -> (gradients, loss, Totals, metrics), summed over micro-batches and devices.

    Gradients are with respect to `params`; `frozen` is the rest of the policy, None if there is no rest.
    """

    def shard(params: Any, frozen: Any, batch: Batch):
        constants, metrics = constants_of_batch(lora.join(params, frozen), batch)
        local, local_frozen = sharding.varying((params, frozen), mesh)

        def loss(trainable, rows, row_constants):
            return loss_of_rows(lora.join(trainable, local_frozen), rows, row_constants)

        def accumulate(gradients, inputs):
            (value, totals), new = jax.value_and_grad(loss, has_aux=True)(local, *inputs)
            return jax.tree.map(jnp.add, gradients, new), (value, totals)

        split = _split((batch, constants), micro_batches)
        gradients, (values, totals) = jax.lax.scan(accumulate, sharding.zeros_like(local), split)
        totals = totals.collapse()
        # The only reduction of gradients in the step; a psum inside the differentiated function would sit in every layer.
        gradients, value = sharding.psum((gradients, values.sum()), mesh)
        return gradients, value, totals.psum(sharding.axis_name(mesh)), metrics

    specs = (PartitionSpec(), PartitionSpec(), PartitionSpec(sharding.DATA))
    return sharding.per_shard(shard, mesh, specs, PartitionSpec())


def _make_step(*, constants_of_batch, loss_of_rows, optimizer, mesh: Mesh, micro_batches: int) -> Step:
    gradient = make_gradient(
        constants_of_batch=constants_of_batch,
        loss_of_rows=loss_of_rows,
        mesh=mesh,
        micro_batches=micro_batches,
    )

    def step(state: TrainState, frozen: Any, batch: Batch):
        gradients, value, totals, metrics = gradient(state.params, frozen, batch)
        norm = optax.tree.norm(gradients)
        finite = jnp.isfinite(norm) & jnp.isfinite(value)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        proposed = (optax.apply_updates(state.params, updates), optimizer_state)
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), proposed, (state.params, state.optimizer)
        )
        skipped = jnp.where(finite, 0, state.skipped + 1)
        new_state = replace(state, params=params, optimizer=optimizer_state, skipped=skipped)
        return new_state, {**metrics, **totals.finalize(), "grad/norm": norm, "update/skipped": 1.0 - finite}

    compiled = jax.jit(step, donate_argnums=0)

    def keep_frozen(state: TrainState, batch: Batch):
        """The frozen part is an argument of its own: it is neither donated nor returned."""
        new_state, metrics = compiled(replace(state, frozen=None), state.frozen, batch)
        return replace(new_state, frozen=state.frozen), metrics

    return keep_frozen


def _split(tree: Any, parts: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), tree)


def _over_micro_batches(function, batch: Batch, micro_batches: int):
    return jax.lax.map(function, _split(batch, micro_batches))
