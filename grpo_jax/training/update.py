"""One optimizer step on one mini-batch, the same whatever the micro-batches and devices.

1. Token weights, once for the mini-batch: segment sums per device and one psum. Every division over the batch is in them.
2. Micro-batches under `lax.scan`: each adds the gradient of a plain sum, −Σ w·ℓ, to a local accumulator.
3. One psum of the gradients over the data axis. (What fsdp and tensor split, the partitioner sums where it lies.)
4. Clip, optimizer, and a guard: a non-finite gradient never reaches the parameters.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from grpo_jax.losses import diagnostics
from grpo_jax.losses import objective as objectives
from grpo_jax.losses.diagnostics import Totals, token_means
from grpo_jax.losses.groups import group_rows
from grpo_jax.models import lora
from grpo_jax.models.axes import constrain, whole
from grpo_jax.training import sharding, sizes
from grpo_jax.training.sizes import LogProbs
from grpo_jax.types import Batch, TrainState, rows


@dataclass(frozen=True)
class Step:
    """A jitted optimizer step, (state, batch) -> (state, metrics). It donates its state, all but what it does not change.

    State comes out split over the mesh as it went in.
    """

    program: Any
    """The jitted function. The frozen part is an argument of its own, neither donated nor returned, and the reference is
    none: it may lie in host memory."""

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        new_state, metrics = self.program(*self._arguments(state, batch))
        return replace(new_state, frozen=state.frozen, ref_params=state.ref_params), metrics

    def lower(self, state: TrainState, batch: Batch) -> jax.stages.Lowered:
        """The program for such arguments, which may be shapes with shardings, to look at or to compile."""
        return self.program.lower(*self._arguments(state, batch))

    @staticmethod
    def _arguments(state: TrainState, batch: Batch):
        specs = sharding.specs_of(state.params), sharding.specs_of(state.optimizer)
        return replace(state, frozen=None, ref_params=None), state.frozen, batch, specs


def make_update(
    *,
    log_probs: LogProbs,
    objective: objectives.Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    num_groups: int,
    micro_batches: int,
    vocab_size: int,
    kernels: bool = False,
    old_is_sampler: bool = False,
) -> Step:
    """The jitted policy update of mini-batches of `num_groups` groups with ids in [0, num_groups).

    A group may be split between devices and micro-batches, a sequence not. `kernels` says that attention is not einsum,
    `old_is_sampler` that old log-probs are the sampler's, which the step's own are then compared with.
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
        now = jax.lax.stop_gradient(_over_micro_batches(log_probs, params, batch, micro_batches, axis))
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
        rows = group_rows(batch.group_ids, num_groups, axis)
        mixed = (rows.sum(batch.advantages > 0) > 0) & (rows.sum(batch.advantages < 0) > 0)
        return {
            "update/trained_tokens": rows.total(batch.loss_mask.sum(axis=1)),
            "update/mixed_groups": rows.total(mixed / jnp.maximum(rows.size, 1)),
            **diagnostics.batch_metrics(
                advantages=batch.advantages,
                token_weights=weights.policy,
                loss_mask=batch.loss_mask,
                completion_lengths=batch.completion_lengths,
                groups=rows,
                constants=constants,
            ),
            **diagnostics.learning_tax(
                batch.completion_ids,
                batch.loss_mask,
                weights.policy,
                batch.advantages,
                vocab_size=vocab_size,
                axis_name=axis,
            ),
        }

    def loss_of_rows(log_probs: LogProbs, params: Any, rows: Batch, constants: Any):
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
        trainers = jax.lax.stop_gradient(now) if old_is_sampler else old
        gap = {"sampler/log_prob_gap": jnp.abs(trainers - rows.sampler_full_log_probs)}
        return value, totals._replace(means={**totals.means, **token_means(gap, rows.loss_mask)})

    return _make_step(
        log_probs=log_probs,
        constants_of_batch=mini_batch_constants,
        loss_of_rows=loss_of_rows,
        optimizer=optimizer,
        mesh=mesh,
        micro_batches=micro_batches,
        kernels=kernels,
    )


def make_supervised_update(
    *, log_probs: LogProbs, optimizer: optax.GradientTransformation, mesh: Mesh, micro_batches: int
) -> Step:
    """The jitted warm-start update: mean negative log-likelihood per token of the completions."""

    def token_weight(params: Any, batch: Batch):
        del params
        weight = 1.0 / jnp.maximum(sharding.psum(batch.loss_mask.sum(), mesh), 1)
        return jnp.full(batch.group_ids.shape, weight), {}

    def loss_of_rows(log_probs: LogProbs, params: Any, rows: Batch, weight: Float[Array, "n"]):
        now = jnp.where(rows.loss_mask, log_probs(params, rows)[0], 0.0)
        totals = Totals(means=token_means({"warm_start/loss": -now}, rows.loss_mask), sums={}, maxima={})
        return -(weight[:, None] * now).sum(), totals

    return _make_step(
        log_probs=log_probs,
        constants_of_batch=token_weight,
        loss_of_rows=loss_of_rows,
        optimizer=optimizer,
        mesh=mesh,
        micro_batches=micro_batches,
    )


def make_log_prob_pass(*, log_probs: LogProbs, mesh: Mesh, micro_batches: int, kernels: bool = False):
    """A jitted function (params, batch) -> log_probs [N, T], without a gradient, micro-batch by micro-batch."""

    def shard(params: Any, batch: Batch):
        return _over_micro_batches(log_probs, params, batch, micro_batches, sharding.axis_name(mesh))

    spec = PartitionSpec(sharding.DATA)  # fsdp splits rows too, which is the partitioner's business
    return jax.jit(sharding.per_shard(shard, mesh, (PartitionSpec(), spec), spec, kernels=kernels))


def make_gradient(
    *,
    log_probs: LogProbs,
    constants_of_batch,
    loss_of_rows,
    mesh: Mesh,
    micro_batches: int,
    kernels: bool = False,
):
    """A function (params, frozen, batch, specs) -> (gradients, loss, Totals, metrics), summed over all there is.

    Gradients are with respect to `params` and split as `specs` says; `frozen` is the rest of the policy, None if there
    is no rest.
    """

    def shard(params: Any, frozen: Any, batch: Batch, *, specs: sharding.Specs):
        constants, metrics = constants_of_batch(lora.join(params, frozen), batch)
        local, local_frozen = sharding.varying((params, frozen), mesh)

        def accumulate(gradients, inputs):
            (rows, row_constants), size = inputs

            def at_size(log_probs):
                def loss(trainable):
                    return loss_of_rows(log_probs, lora.join(trainable, local_frozen), rows, row_constants)

                return jax.value_and_grad(loss, has_aux=True)(local)

            (value, totals), new = sizes.switch(log_probs, rows, size, at_size)
            gradients = jax.tree.map(jnp.add, gradients, new)
            return sharding.keep(gradients, specs, mesh, manual=True), (value, totals)

        order = sizes.in_order(log_probs, batch, micro_batches=micro_batches)
        split = _split(_taken((batch, constants), order), micro_batches)
        split = split, sizes.choose(log_probs, split[0], sharding.axis_name(mesh))
        gradients, (values, totals) = jax.lax.scan(accumulate, sharding.accumulators(local), split)
        totals = totals.collapse()
        # The only reduction of gradients in the step; a psum inside the differentiated function would sit in every layer.
        gradients, value = sharding.psum((gradients, values.sum()), mesh)
        gradients = jax.tree.map(lambda sum, param: sum.astype(param.dtype), gradients, params)
        return gradients, value, totals.psum(sharding.axis_name(mesh)), metrics

    inputs = (PartitionSpec(), PartitionSpec(), PartitionSpec(sharding.DATA))

    def gradient(params: Any, frozen: Any, batch: Batch, specs: sharding.Specs):
        run = sharding.per_shard(partial(shard, specs=specs), mesh, inputs, PartitionSpec(), kernels=kernels)
        return run(params, frozen, batch)

    return gradient


def _make_step(
    *,
    log_probs: LogProbs,
    constants_of_batch,
    loss_of_rows,
    optimizer,
    mesh: Mesh,
    micro_batches: int,
    kernels: bool = False,
) -> Step:
    gradient = make_gradient(
        log_probs=log_probs,
        constants_of_batch=constants_of_batch,
        loss_of_rows=loss_of_rows,
        mesh=mesh,
        micro_batches=micro_batches,
        kernels=kernels,
    )

    def step(state: TrainState, frozen: Any, batch: Batch, specs: tuple[sharding.Specs, sharding.Specs]):
        gradients, value, totals, metrics = gradient(state.params, frozen, batch, specs[0])
        norm = optax.tree.norm(gradients)
        finite = jnp.isfinite(norm) & jnp.isfinite(value)

        def move(params, optimizer_state, gradients):
            updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
            return optax.apply_updates(params, updates), optimizer_state

        # Two branches rather than a choice between two results, for which new and old have to be held at once.
        params, optimizer_state = jax.lax.cond(
            finite, move, lambda *unmoved: unmoved[:2], state.params, state.optimizer, gradients
        )
        params = sharding.keep(params, specs[0], mesh)
        optimizer_state = sharding.keep(optimizer_state, specs[1], mesh)
        skipped = jnp.where(finite, 0, state.skipped + 1)
        new_state = replace(state, params=params, optimizer=optimizer_state, skipped=skipped)
        return new_state, {**metrics, **totals.finalize(), "grad/norm": norm, "update/skipped": 1.0 - finite}

    return Step(jax.jit(step, donate_argnums=0, static_argnums=3))


def _split(tree: Any, parts: int) -> Any:
    """Micro-batches, the rows of each over the same devices as the rows of the whole."""
    rows = jax.tree.map(lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), tree)
    return jax.tree.map(lambda x: constrain(x, None, "rows"), rows)


def _taken(tree: Any, order: Int[Array, "N"] | None) -> Any:
    """The rows of `tree` in this order. They are brought to every device first, which costs little: none is a float of
    the model's. A gather from rows that fsdp splits aborts XLA's partitioner if another axis is manual (jax 0.10)."""
    return tree if order is None else rows(jax.tree.map(whole, tree), order)


def _over_micro_batches(
    log_probs: LogProbs, params: Any, batch: Batch, micro_batches: int, axis_name: str | None
) -> Float[Array, "N T"]:
    """Log-probs of all rows, in the order in which they stand."""
    order = sizes.in_order(log_probs, batch, micro_batches=micro_batches)
    parts = _split(_taken(batch, order), micro_batches)

    def of_part(inputs):
        part, size = inputs
        return sizes.switch(log_probs, part, size, lambda log_probs: log_probs(params, part)[0])

    out = jax.lax.map(of_part, (parts, sizes.choose(log_probs, parts, axis_name)))
    out = out.reshape(batch.completion_ids.shape)
    return out if order is None else jnp.zeros_like(out).at[order].set(out)
