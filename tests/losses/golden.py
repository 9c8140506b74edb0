"""Golden cases as objectives and arrays, from the shared folder or from the file GRPO_JAX_GOLDEN."""

import json
import os
from functools import cache, partial
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
    """The objective a case describes; the names of its options are ours, what it leaves out the default."""
    parts = {}
    if "advantage" in case:
        options = dict(case["advantage"])
        baseline, scale = getattr(advantages, options.pop("baseline")), SCALES[options.pop("scale")]
        parts["advantage"] = partial(advantages.advantage, baseline=baseline, scale=scale, **options)
    if "aggregation" in case:
        rule = getattr(aggregation, case["aggregation"])
        parts["aggregation"] = rule(max_length=case["max_length"]) if rule is aggregation.constant else rule
    if "surrogate" in case:
        options = dict(case["surrogate"])
        kind, parts["ratio"] = options.pop("kind"), getattr(ratios, options.pop("ratio", "token"))
        if kind == "dfpo":
            options["transform"] = getattr(dfpo, options["transform"])
            parts["transform"], parts["surrogate"] = dfpo.DriftFix(**options), surrogates.reinforce
        else:
            parts["surrogate"] = partial(getattr(surrogates, kind), **options)
    if case.get("hadw"):
        anchor, scale = case["hadw"]["anchor"], case["hadw"]["scale"]
        parts["history"] = hadw.HADW(update=hadw.fixed(), initial=anchor, scale=scale)
    if case.get("kl"):
        parts["kl"], parts["kl_coef"] = getattr(kl, case["kl"]["kind"]), case["kl"]["coef"]
    return objective.Objective(**parts, sampler_correction=lambda log_gap, mask: (jnp.exp(log_gap), {}))


def arrays(case: dict) -> dict[str, np.ndarray]:
    """A case's arrays by row, in float64; `group_ids` are 0, 1, …"""
    _, ids = np.unique(case["groups"], return_inverse=True)
    rows = {name: np.asarray(case[name], np.float64) for name in ROW_FIELDS if name in case}
    rows["mask"] = rows["mask"].astype(bool)
    rows.setdefault("sampler_weights", np.ones_like(rows["log_probs"]))
    return rows | {"group_ids": ids.astype(np.int32)}


def loss_and_gradient(objective_: objective.Objective, *, log_probs, **rows):
    def loss(log_probs):
        return objective.loss(objective_, log_probs=log_probs, **rows)

    (value, totals), gradient = jax.value_and_grad(loss, has_aux=True)(log_probs)
    return value, totals, gradient


@cache
def stage(function, options: str, jit: bool, **static):
    """`function` of the objective these options make; cases share most of their compiled stages."""
    bound = partial(function, build(json.loads(options)), **static)
    # Small programs, each run a few times: compiling is all the cost.
    return jax.jit(bound, compiler_options={"xla_backend_optimization_level": 0}) if jit else bound


def evaluate(case: dict, rows: dict, num_groups: int, *, jit: bool) -> dict[str, jax.Array]:
    """Everything `expected` holds, from arrays."""

    def run(function, *names, **arguments):
        options = {name: case[name] for name in names if case.get(name) is not None}
        if "hadw" in options:  # the anchor itself comes in with the history
            options["hadw"] = options["hadw"] | {"anchor": 0.0}
        static = {} if function is loss_and_gradient else {"num_groups": num_groups}
        return stage(function, json.dumps(options), jit, **static)(**arguments)

    group_ids = rows["group_ids"]
    graded = {"rewards": rows["rewards"], "group_ids": group_ids}
    raw, _, _ = run(objective.advantages, "advantage", **graded)
    used = raw
    if case.get("hadw") is not None:
        history = objective.init_history(build(case))
        used, _, _ = run(objective.advantages, "advantage", "hadw", history=history, **graded)
    weights = run(
        objective.weights,
        "aggregation",
        "max_length",
        advantages=used,
        loss_mask=rows["mask"],
        group_ids=group_ids,
    )
    policy = {
        "log_probs": rows["log_probs"],
        "old_log_probs": rows["old_log_probs"],
        # The correction multiplies by π_old/π_sampler: a weight w is log π_sampler = log π_old − log w.
        "sampler_log_probs": rows["old_log_probs"] - jnp.log(rows["sampler_weights"]),
        "loss_mask": rows["mask"],
        "advantages": used,
        "weights": weights,
    }
    constants = run(objective.group_constants, "surrogate", group_ids=group_ids, **policy)
    value, totals, gradient = run(
        loss_and_gradient,
        "surrogate",
        "kl",
        ref_log_probs=rows["ref_log_probs"],
        group_constants=constants,
        **policy,
    )
    return {
        "advantages": raw,
        "weighted_advantages": used,
        "token_weights": jnp.where(rows["mask"], weights.policy[:, None], 0.0),
        "dfpo_weights": None if constants is None else constants.weights,
        "policy_loss": totals.sums["loss/policy"],
        "loss": value,
        "grad_log_probs": gradient,
    }
