"""Diagnostics: numbers by hand, and totals that meet before they are divided."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import aggregation, dfpo, diagnostics, objective, ratios, recipes
from grpo_jax.losses.diagnostics import Totals
from grpo_jax.losses.groups import group_rows
from tests.losses.batches import NUM_GROUPS, batch, evaluate, prepare

ONE_GROUP = group_rows(jnp.zeros(4, jnp.int32))
ADVANTAGES = jnp.asarray([1.0, 1.0, -1.0, -1.0])


def test_totals_are_divided_once_all_parts_have_met():
    """2 tokens of mean 1 and 6 of mean 5: the mean is 4, not 3."""
    parts = [
        Totals({"x": (jnp.asarray(2.0), jnp.asarray(2.0))}, {"s": jnp.asarray(1.0)}, {"m": jnp.asarray(3.0)}),
        Totals(
            {"x": (jnp.asarray(30.0), jnp.asarray(6.0))}, {"s": jnp.asarray(2.0)}, {"m": jnp.asarray(2.0)}
        ),
    ]
    merged = parts[0].merge(parts[1]).finalize()
    assert merged == {"x": 4.0, "s": 3.0, "m": 3.0}
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    assert stacked.collapse().finalize() == merged
    assert parts[0].psum(None) is parts[0]
    assert Totals({"x": (jnp.zeros(()), jnp.zeros(()))}, {}, {}).finalize() == {"x": 0.0}


def test_effective_sample_size():
    ratio, mask = jnp.asarray([[1.0, 3.0]]), jnp.ones((1, 2), bool)
    reports = diagnostics.token_reports(log_ratio=jnp.log(ratio), ratio=ratio)
    values = Totals(diagnostics.token_means(reports, mask), {}, {}).finalize()
    np.testing.assert_allclose(values["ratio/ess"], 16 / (2 * 10), rtol=1e-6)
    assert "ratio/square" not in values


def test_reward_metrics():
    rewards, ids = jnp.asarray([1.0, 1, 0, 0, 0, 1, 0.5, 0.5]), jnp.asarray([0, 0, 1, 1, 2, 2, 3, 3])
    got = diagnostics.reward_metrics(rewards, group_rows(ids))
    assert {name: float(x) for name, x in got.items()} == {
        "reward/mean": 0.5,
        "groups/mixed_fraction": 0.25,
        "groups/all_right": 0.25,
        "groups/all_wrong": 0.25,
    }


def test_length_metrics_of_mixed_groups_only():
    """Right answers of 2 and 4 tokens, wrong ones of 6 and 8: mean 5, gap (7 − 3)/5, cv √5/5."""
    lengths, ids = jnp.asarray([2, 4, 6, 8, 100, 200]), jnp.asarray([0, 0, 0, 0, 1, 1])
    advantages = jnp.asarray([1.0, 1, -1, -1, 0, 0])
    got = diagnostics.length_metrics(lengths, advantages, group_rows(ids))
    np.testing.assert_allclose(got["length/mean"], 320 / 6, rtol=1e-6)
    np.testing.assert_allclose(got["length/gap"], 0.8, rtol=1e-6)
    np.testing.assert_allclose(got["length/cv"], np.sqrt(5) / 5, rtol=1e-6)


def test_fault_38_lengths_are_of_the_tokens_that_exist():
    """3 tokens and 9 truncated and masked ones: the mean length is 6, not 1.5."""
    made = diagnostics.batch_metrics(
        advantages=jnp.asarray([1.0, -1.0]),
        token_weights=jnp.ones(2),
        loss_mask=jnp.arange(9)[None] < jnp.asarray([[3], [0]]),
        completion_lengths=jnp.asarray([3, 9]),
        groups=group_rows(jnp.zeros(2, jnp.int32)),
    )
    assert made["length/mean"] == 6


def test_negative_lengths_are_an_error():
    with pytest.raises(ValueError, match="completion_lengths: expected none below 0; got -1"):
        diagnostics.length_metrics(jnp.asarray([2, 4, -1, 8]), ADVANTAGES, ONE_GROUP)


def test_coupling_is_log_of_the_length_ratio_under_token_and_0_under_the_others():
    lengths = jnp.asarray([2.0, 4.0, 6.0, 12.0])
    sums = ONE_GROUP.sum, ONE_GROUP.total
    for rule, wanted in (
        (aggregation.token, np.log(3 / 9)),
        (aggregation.sequence, 0.0),
        (aggregation.balanced, 0.0),
    ):
        weights = rule(ADVANTAGES, lengths, *sums)
        got = diagnostics.coupling_log_ratio(weights, ADVANTAGES, lengths, ONE_GROUP)
        np.testing.assert_allclose(got, wanted, atol=1e-6)
    one_sided = jnp.where(ADVANTAGES > 0, lengths, 0.0)
    assert diagnostics.coupling_log_ratio(one_sided, ADVANTAGES, one_sided, ONE_GROUP) == 0


def test_shared_token_residue():
    lengths = jnp.asarray([2.0, 2.0, 4.0, 4.0])
    sums = ONE_GROUP.sum, ONE_GROUP.total
    for rule, wanted in ((aggregation.token, 0.0), (aggregation.balanced, 1 / 3)):
        weights = rule(ADVANTAGES, lengths, *sums)
        got = diagnostics.shared_token_residue(weights, ADVANTAGES, ONE_GROUP)
        np.testing.assert_allclose(got, wanted, atol=1e-6)
    rows = batch()
    groups = group_rows(rows["group_ids"], NUM_GROUPS)
    for transform, cancels in ((dfpo.orth_proj, True), (dfpo.none, False)):
        made = prepare(recipes.dfpo(recipes.grpo(aggregation=aggregation.token), transform=transform), rows)
        got = diagnostics.shared_token_residue(
            made["weights"].policy, made["advantages"], groups, made["group_constants"].weights
        )
        assert (got < 1e-5) == cancels


def test_learning_tax():
    """Id 7 is half of the tokens, so the first five tenths are its own."""
    ids = jnp.asarray([[7, 7, 7, 1, 2], [7, 7, 3, 4, 5]])
    mask = jnp.ones((2, 5), bool)

    def deciles(weights, mask=mask, ids=ids):
        got = diagnostics.learning_tax(ids, mask, jnp.asarray(weights), jnp.ones(2), vocab_size=9)
        return [float(got[f"learning_tax/decile_{k}"]) for k in range(1, 11)]

    np.testing.assert_allclose(deciles([0.5, 0.5]), 0.1, rtol=1e-5)
    np.testing.assert_allclose(deciles([1.0, 0.0]), [0.12] * 5 + [0.2, 0.2] + [0.0] * 3, atol=1e-6)
    only_seven = deciles([1.0, 1.0], mask=ids == 7)
    np.testing.assert_allclose(only_seven, 0.1, rtol=1e-5)
    shuffled = deciles([0.0, 1.0], ids=ids[::-1], mask=mask)
    np.testing.assert_allclose(shuffled, deciles([1.0, 0.0]), atol=1e-6)


def test_every_name_of_the_loss_is_made():
    rows = batch()
    method = recipes.ha_dw(recipes.grpo())
    _, _, totals = evaluate(method, rows)
    _, _, from_rewards = objective.advantages(
        method,
        rewards=rows["rewards"],
        group_ids=rows["group_ids"],
        num_groups=NUM_GROUPS,
        history=objective.init_history(method),
    )
    made = prepare(method, rows)
    from_batch = diagnostics.batch_metrics(
        advantages=made["advantages"],
        token_weights=made["weights"].policy,
        loss_mask=rows["loss_mask"],
        completion_lengths=rows["loss_mask"].sum(1),
        groups=group_rows(rows["group_ids"], NUM_GROUPS),
    )
    assert set(from_rewards) | set(from_batch) | set(totals.finalize()) >= {
        "length/mean", "length/cv", "length/gap", "coupling/log_ratio", "loss/policy",
        "shared_token/residue", "hadw/anchor_prior", "hadw/anchor_posterior", "hadw/eta",
        "hadw/phi_mean_hard", "hadw/phi_mean_easy", "clip/low_fraction", "clip/high_fraction", "ratio/max",
        "ratio/ess", "kl/old", "kl/ref", "entropy/mean", "groups/mixed_fraction", "groups/all_right",
        "groups/all_wrong", "sampler/log_prob_gap", "reward/mean",
    }  # fmt: skip
    assert np.all(np.isfinite(list(from_batch.values())))


def test_the_clamped_share_is_reported_for_the_plain_product():
    rows = batch()
    rows["old_log_probs"] = rows["log_probs"].at[0].add(-30.0)
    _, _, totals = evaluate(recipes.dfpo(recipes.grpo()), rows)
    share = rows["loss_mask"][0].sum() / rows["loss_mask"].sum()
    np.testing.assert_allclose(totals.finalize()["ratio/clamped_fraction"], share, rtol=1e-6)
    _, _, totals = evaluate(recipes.dfpo(recipes.grpo(), ratio=ratios.sequence), rows)
    assert "ratio/clamped_fraction" not in totals.finalize()


def test_global_norm():
    assert diagnostics.global_norm({"a": jnp.asarray([3.0]), "b": [jnp.asarray([[0.0, 4.0]])]}) == 5
