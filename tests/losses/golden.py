"""Golden cases as objectives and arrays: the shared folder's golden/losses.json, or the file GRPO_JAX_GOLDEN."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.losses import advantages, aggregation, dfpo, hadw, kl, objective, ratios, surrogates
from tests.shared import shared

SCALES = {
    "group_std": advantages.group_std,
    "batch_std": advantages.batch_std,
    "batch_advantage_std": advantages.batch_advantage_std,
    "none": advantages.no_scale,
}
ROW_FIELDS = ("rewards", "mask", "log_probs", "old_log_probs", "ref_log_probs", "sampler_weights")


def load() -> dict:
    path = os.environ.get("GRPO_JAX_GOLDEN")
    file = Path(path) if path else shared("golden/losses.json")
    data = json.loads(file.read_text())
    assert data["format"] == 1
    return data


def build(case: dict) -> objective.Objective:
    """The objective a case describes; its option names are ours."""
    options = dict(case["advantage"])
    advantage = partial(
        advantages.advantage,
        baseline=getattr(advantages, options.pop("baseline")),
        scale=SCALES[options.pop("scale")],
        **options,
    )
    options = dict(case["surrogate"])
    kind, ratio = options.pop("kind"), getattr(ratios, options.pop("ratio", "token"))
    transform = None
    if kind == "dfpo":
        options["transform"] = getattr(dfpo, options["transform"])
        transform, surrogate = dfpo.DriftFix(**options), surrogates.reinforce
    else:
        surrogate = partial(getattr(surrogates, kind), **options)
    rule = getattr(aggregation, case["aggregation"])
    if rule is aggregation.constant:
        rule = aggregation.constant(max_length=case["max_length"])
    history = None
    if (difficulty := case.get("hadw")) is not None:
        history = hadw.HADW(update=hadw.fixed(), initial=difficulty["anchor"], scale=difficulty["scale"])
    divergence = case.get("kl") or {"kind": "k2", "coef": 0.0}
    return objective.Objective(
        advantage=advantage,
        aggregation=rule,
        ratio=ratio,
        surrogate=surrogate,
        kl=getattr(kl, divergence["kind"]),
        kl_coef=divergence["coef"],
        history=history,
        transform=transform,
        # The factor is π_old/π_sampler, so a weight w comes from log π_sampler = log π_old − log w.
        sampler_correction=_exact_ratio if "sampler_weights" in case else None,
    )


def _exact_ratio(log_gap, mask):
    return jnp.exp(log_gap), {}


def arrays(case: dict) -> dict[str, np.ndarray]:
    """A case's arrays, by row, in float64; `group_ids` are 0, 1, …"""
    _, ids = np.unique(case["groups"], return_inverse=True)
    found = {name: np.asarray(case[name], np.float64) for name in ROW_FIELDS if name in case}
    found["mask"] = found["mask"].astype(bool)
    return found | {"group_ids": ids.astype(np.int32)}


def evaluate(objective_: objective.Objective, rows: dict, num_groups: int) -> dict:
    """Everything `expected` holds, from arrays; the loss with and without regularisers and its gradient."""
    group = {"group_ids": rows["group_ids"], "num_groups": num_groups}
    history = objective.init_history(objective_)
    advantages_, _, _ = objective.advantages(objective_, rewards=rows["rewards"], history=history, **group)
    raw, _, _ = objective.advantages(replace(objective_, history=None), rewards=rows["rewards"], **group)
    weights = objective.weights(objective_, advantages=advantages_, loss_mask=rows["mask"], **group)
    sampler = None
    if "sampler_weights" in rows:
        sampler = rows["old_log_probs"] - jnp.log(rows["sampler_weights"])
    shared_arguments = {
        "old_log_probs": rows["old_log_probs"],
        "loss_mask": rows["mask"],
        "advantages": advantages_,
        "weights": weights,
        "sampler_log_probs": sampler,
    }
    constants = objective.group_constants(
        objective_, log_probs=rows["log_probs"], **shared_arguments, **group
    )

    def loss(log_probs):
        return objective.loss(
            objective_,
            log_probs=log_probs,
            ref_log_probs=rows["ref_log_probs"],
            group_constants=constants,
            **shared_arguments,
        )

    (value, totals), gradient = jax.value_and_grad(loss, has_aux=True)(rows["log_probs"])
    results = {
        "advantages": raw,
        "token_weights": jnp.where(rows["mask"], weights.policy[:, None], 0.0),
        "policy_loss": totals.sums["loss/policy"],
        "loss": value,
        "grad_log_probs": gradient,
    }
    if objective_.history is not None:
        results["weighted_advantages"] = advantages_
    if constants is not None:
        results["dfpo_weights"] = constants.weights
    return results
