"""Recipes: each is what its paper says, and they combine."""

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import aggregation, hadw, ratios, recipes
from tests.losses.batches import batch, evaluate, prepare

ALL = {
    "grpo": recipes.grpo(),
    "dr_grpo": recipes.dr_grpo(max_length=5),
    "dapo": recipes.dapo(),
    "gspo": recipes.gspo(),
    "gspo_token": recipes.gspo_token(),
    "cispo": recipes.cispo(),
    "rloo": recipes.rloo(),
    "reinforce_pp": recipes.reinforce_pp(),
    "sapo": recipes.sapo(),
    "balanced": recipes.balanced(),
    "ha_dw on dapo": recipes.ha_dw(recipes.dapo()),
    "balanced with gspo": recipes.gspo(aggregation=aggregation.balanced),
    "dfpo with balanced": recipes.dfpo(recipes.balanced(), cancel_under_aggregation=True),
    "ha_dw on dfpo": recipes.ha_dw(recipes.dfpo(recipes.balanced()), hadw.HADW(scale=1.5)),
}


@pytest.mark.parametrize("name", ALL)
def test_the_loss_is_the_paper_s_formula_in_plain_loops(name):
    rows = batch(2)
    value, _, _ = evaluate(ALL[name], rows)
    rewards, ids = np.asarray(rows["rewards"], float), np.asarray(rows["group_ids"])
    mask = np.asarray(rows["loss_mask"])
    log_probs, old = np.asarray(rows["log_probs"], float), np.asarray(rows["old_log_probs"], float)
    lengths = mask.sum(1)
    advantages, weights, made = np.zeros(12), np.zeros(12), prepare(ALL[name], rows)
    for g in range(3):
        group = ids == g
        advantages[group] = (rewards[group] - rewards[group].mean()) / (rewards[group].std() + 1e-6)
    centred = np.array([rewards[i] - rewards[ids == ids[i]].mean() for i in range(12)])
    for i in range(12):
        group = ids == ids[i]
        side = group & (np.sign(centred) == np.sign(centred[i]))
        size = group.sum()
        if name == "dr_grpo":
            advantages[i], weights[i] = centred[i], 1 / (3 * size * 5)
        elif name == "rloo":
            advantages[i], weights[i] = centred[i] * size / (size - 1), 1 / (3 * size)
        elif name == "reinforce_pp":
            advantages[i], weights[i] = centred[i] / centred.std(), 1 / lengths.sum()
        elif "dapo" in name:
            weights[i] = 1 / lengths.sum()
        elif "balanced" in name or name == "ha_dw on dfpo":
            weights[i] = side.sum() / (3 * size * lengths[side].sum())
        elif name == "cispo":
            weights[i] = 1 / (3 * lengths[group].sum())
        else:
            weights[i] = 1 / (3 * size * lengths[i])
        if "ha_dw" in name:  # the anchor is the first batch's own mean
            scale = 1.5 if "dfpo" in name else 1.3
            advantages[i] *= scale * np.exp(-np.sign(centred[i]) * (rewards[group].mean() - rewards.mean()))
    total = 0.0
    for i in range(12):
        for t in np.flatnonzero(mask[i]):
            ratio = np.exp(log_probs[i, t] - old[i, t])
            low, high = 0.2, 0.2
            if "dapo" in name:
                high = 0.28
            if "gspo" in name:
                ratio, low, high = np.exp(np.mean((log_probs - old)[i][mask[i]])), 3e-4, 4e-4
            a = advantages[i]
            surrogate = min(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)
            if name == "cispo":
                surrogate = min(ratio, 5.0) * a * log_probs[i, t]
            elif name == "rloo":
                surrogate = a * log_probs[i, t]
            elif "dfpo" in name:
                surrogate = float(made["group_constants"].weights[i]) * a * log_probs[i, t]
            elif name == "sapo":
                tau = 1.0 if a > 0 else 1.05
                surrogate = a * 4 / tau / (1 + np.exp(-tau * (ratio - 1)))
            total -= weights[i] * surrogate
    np.testing.assert_allclose(value, total, rtol=2e-5, atol=1e-6)


def test_at_ratio_1_and_equal_lengths_grpo_dapo_gspo_and_balanced_are_one_method():
    rows = batch() | {"loss_mask": jnp.ones((12, 5), bool)}
    rows["old_log_probs"] = rows["log_probs"]
    wanted = evaluate(recipes.grpo(), rows)[1]
    for name in ("dapo", "gspo_token", "balanced", "balanced with gspo"):
        gradient = evaluate(ALL[name], rows)[1]
        if (
            name == "balanced with gspo"
        ):  # a sequence ratio spreads the gradient evenly, as it already is here
            np.testing.assert_allclose(gradient.sum(1), wanted.sum(1), rtol=1e-5)
        else:
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5)


def test_overrides_replace_any_field():
    method = recipes.dapo(ratio=ratios.sequence, kl_coef=0.1, mask_truncated=False)
    assert method.ratio is ratios.sequence and method.kl_coef == 0.1 and not method.mask_truncated
    assert method.aggregation is aggregation.batch_token
