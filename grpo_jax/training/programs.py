"""The compiled programs of an optimizer step, from a config, an architecture and a mesh. Nothing runs here.

Training calls them with arrays and planning with shapes, so that what is planned is what will run.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import optax
from jax.sharding import Mesh

from grpo_jax import amounts
from grpo_jax.config import Config, OptimizerConfig
from grpo_jax.losses import objective as objectives
from grpo_jax.models import axes
from grpo_jax.models.config import ModelConfig
from grpo_jax.training import layouts, sharding
from grpo_jax.training.log_probs import make_sized_log_probs, tokens_within
from grpo_jax.training.objective import objective_of
from grpo_jax.training.optimizer import make_optimizer
from grpo_jax.training.policy import Policy, make_policy
from grpo_jax.training.update import Step, make_log_prob_pass, make_update


@dataclass(frozen=True)
class Programs:
    """What an optimizer step is made of."""

    policy: Policy
    objective: objectives.Objective
    optimizer: optax.GradientTransformation
    micro_batches: int
    """Forward and backward passes of an optimizer step."""
    kept_logits: int
    """Tokens of a data shard whose logits may wait for the backward pass."""
    layout: layouts.Name
    attention: layouts.Attention
    update: Step
    log_prob_pass: Callable


def build(config: Config, architecture: ModelConfig, *, mesh: Mesh) -> Programs:
    """The programs of a config whose model has this architecture, an embedding for every token included.

    Raises:
        ValueError: the objective's names do not go together; the message names the field.
    """
    rollout, update = config.rollout, config.update
    objective = objective_of(config.loss, max_length=rollout.max_completion_length)
    policy = make_policy(config.model, architecture, mesh=mesh)
    groups, mini_batches = amounts.groups_per_step(config), amounts.mini_batches(config)
    micro_batches = amounts.micro_batches(config)
    kept_logits = mesh.shape[sharding.FSDP] * tokens_within(
        update.head_memory_mib, vocab_size=axes.vocab_per_device(architecture.vocab_size, mesh)
    )
    rows = amounts.rows_per_device(config, shards=sharding.row_shards(mesh))
    layout = layouts.choose(update.layout, rows=rows, group_size=rollout.group_size, mesh=mesh)
    attend_by = layouts.choose_attention(
        update.attention,
        layout=layout,
        platform=sharding.platform(mesh),
        model=policy.config,
        tensor=mesh.shape[sharding.TENSOR],
    )
    kernels = attend_by != "einsum"
    log_probs = make_sized_log_probs(
        policy.graphdef,
        temperature=rollout.temperature,
        kept_logits=kept_logits,
        layout=layout,
        group_size=rollout.group_size,
        number_of_sizes=update.sizes,
        attend_by=attend_by,
    )
    optimizer = build_optimizer(config.optimizer, config.train.steps * update.epochs * mini_batches)
    return Programs(
        policy=policy,
        objective=objective,
        optimizer=optimizer,
        micro_batches=micro_batches,
        kept_logits=kept_logits,
        layout=layout,
        attention=attend_by,
        update=make_update(
            log_probs=log_probs,
            objective=objective,
            optimizer=optimizer,
            mesh=mesh,
            num_groups=groups,
            micro_batches=micro_batches,
            vocab_size=architecture.vocab_size,
            kernels=kernels,
            old_is_sampler=update.old_log_probs == "sampler",
        ),
        log_prob_pass=make_log_prob_pass(
            log_probs=log_probs, mesh=mesh, micro_batches=micro_batches * mini_batches, kernels=kernels
        ),
    )


def build_optimizer(options: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """The optimizer of a stage of `total_steps` optimizer steps."""
    return make_optimizer(**asdict(options), total_steps=total_steps)
