"""Balanced Aggregation, HA-DW and DFPO in Tunix's GRPOLearner, through its public registries.

    import tunix_methods
    GRPOConfig(policy_loss_fn="balanced")
    GRPOConfig(policy_loss_fn="dfpo", num_iterations=2)
    GRPOConfig(advantage_estimator="ha_dw")

`policy_loss` fits any `Objective` to the signature Tunix calls; after that a method is a few lines. Tunix
keeps the completions of a prompt in neighbouring rows and never splits them between micro-batches, so group
ids are row numbers divided by G. The README beside this file says where a rule is inexact there.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.rl import common, function_registry

from grpo_jax.losses import aggregation, objective, recipes
from grpo_jax.losses.objective import Objective


def policy_loss(method: Objective, model, example, config, pad_id, eos_id):
    """The loss and metrics of one Tunix micro-batch under `method`."""
    graphdef, state = nnx.split(model)
    now = common.compute_per_token_logps(
        graphdef,
        state,
        example.prompt_ids,
        example.completion_ids,
        pad_id,
        eos_id,
        stop_gradient=False,
        temperature=config.temperature,
    )
    old = now if example.old_per_token_logps is None else example.old_per_token_logps
    rows = {"loss_mask": example.completion_mask.astype(bool), "advantages": jnp.asarray(example.advantages)}
    groups = groups_of(len(now), config.num_generations)
    weights = objective.weights(method, **rows, **groups)
    rows |= {"log_probs": now, "old_log_probs": jax.lax.stop_gradient(old), "weights": weights}
    constants = objective.group_constants(method, **rows, **groups)
    loss, totals = objective.loss(
        method, **rows, ref_log_probs=example.ref_per_token_logps, group_constants=constants
    )
    metrics = totals.finalize()
    # The two names that GRPOLearner logs.
    metrics["kl"] = metrics.get("kl/ref", 0.0)
    metrics["pg_clipfrac"] = metrics.get("clip/low_fraction", 0.0) + metrics.get("clip/high_fraction", 0.0)
    return loss, metrics


def groups_of(num_rows: int, group_size: int):
    """Which group each row belongs to, as `grpo_jax.losses` asks for it."""
    return {"group_ids": jnp.arange(num_rows) // group_size, "num_groups": num_rows // group_size}


@function_registry.register_policy_loss_fn("balanced")
def balanced(model, example, algo_config, pad_id, eos_id):
    """Balanced Aggregation."""
    method = recipes.balanced(
        clip_low=algo_config.epsilon, clip_high=algo_config.epsilon, kl_coef=algo_config.beta
    )
    return policy_loss(method, model, example, algo_config, pad_id, eos_id)


@function_registry.register_policy_loss_fn("dfpo")
def dfpo(model, example, algo_config, pad_id, eos_id):
    """DFPO: differs from the plain policy gradient from a rollout's second update on (num_iterations > 1)."""
    method = recipes.dfpo(recipes.grpo(aggregation=aggregation.token, kl_coef=algo_config.beta))
    return policy_loss(method, model, example, algo_config, pad_id, eos_id)


def register_ha_dw(name: str, method: Objective) -> None:
    """HA-DW as an advantage estimator; its history lives in this registration."""
    history = objective.init_history(method)

    @function_registry.register_advantage_estimator(name)
    def estimate(rewards, num_generations):
        nonlocal history
        groups = groups_of(len(rewards), num_generations)
        advantages, history, _ = objective.advantages(method, rewards=rewards, history=history, **groups)
        return advantages


register_ha_dw("ha_dw", recipes.ha_dw(recipes.grpo()))
