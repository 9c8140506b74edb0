"""DFPO: cancellation within groups, however they are split, and its two ablations."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from grpo_jax.losses import aggregation, dfpo, hadw, ratios, recipes, sampler, surrogates
from grpo_jax.losses.groups import group_rows
from tests.losses.batches import NUM_GROUPS, batch, compiled, evaluate, loss_and_gradient, prepare

TRANSFORMS = [dfpo.min_replace, dfpo.orth_proj]
COLLAPSING = [ratios.sequence, ratios.sequence_product]
UNIFORM = [
    aggregation.token,
    aggregation.batch_token,
    aggregation.sequence_sum,
    aggregation.constant(max_length=5),
]
UNEVEN = [aggregation.sequence, aggregation.balanced, aggregation.balanced_mass, aggregation.balanced_unit]


def group_totals(values, group_ids) -> np.ndarray:
    return np.array([np.sum(np.asarray(values)[np.asarray(group_ids) == g]) for g in range(NUM_GROUPS)])


def cancelled(method, rows) -> np.ndarray:
    """Σ_i ω_i Â_i w̃_i per group: the gradient on a token that all responses share."""
    made = prepare(method, rows)
    return group_totals(
        made["weights"].policy * made["advantages"] * made["group_constants"].weights, rows["group_ids"]
    )


def test_by_hand():
    ids = jnp.asarray([0, 0, 0, 0])
    ratio, advantages = jnp.asarray([1.2, 0.8, 1.0, 1.4]), jnp.asarray([1.0, 1.0, -1.0, -1.0])
    smallest, _ = dfpo.min_replace(ratio, advantages, group_rows(ids))
    np.testing.assert_allclose(smallest, 0.8)
    # Âᵀw = −0.4 and ‖Â‖² = 4: w̃ = w + 0.1 Â.
    projected, _ = dfpo.orth_proj(ratio, advantages, group_rows(ids))
    np.testing.assert_allclose(projected, [1.3, 0.9, 0.9, 1.3], rtol=1e-6)


@pytest.mark.parametrize("ratio", COLLAPSING)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_shared_token_cancels_where_the_token_weight_is_uniform(transform, ratio):
    rows = batch()
    for rule in UNIFORM:
        method = recipes.dfpo(recipes.grpo(aggregation=rule), transform=transform, ratio=ratio)
        np.testing.assert_allclose(cancelled(method, rows), 0, atol=1e-6)
    plain = recipes.dfpo(recipes.grpo(aggregation=aggregation.token), transform=dfpo.none, ratio=ratio)
    assert np.all(np.abs(cancelled(plain, rows)) > 1e-5)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_other_rules_it_cancels_only_when_asked_to(transform):
    rows = batch()
    for rule in UNEVEN:
        base = recipes.grpo(aggregation=rule)
        asked = recipes.dfpo(base, transform=transform, cancel_under_aggregation=True)
        np.testing.assert_allclose(cancelled(asked, rows), 0, atol=1e-6)
        assert np.any(np.abs(cancelled(recipes.dfpo(base, transform=transform), rows)) > 1e-4)


def test_the_gradient_on_a_token_all_responses_share_vanishes():
    """Every response holds one token whose log-probability is one shared parameter."""
    rows = batch() | {"loss_mask": jnp.ones((12, 5), bool)}

    def gradient(method):
        def loss(shared):
            return loss_and_gradient(method, rows["log_probs"].at[:, 2].set(shared), given)[0]

        given = prepare(method, rows)
        return float(jax.grad(loss)(jnp.asarray(-1.0)))

    token = recipes.grpo(aggregation=aggregation.token)
    assert abs(gradient(recipes.dfpo(token))) < 1e-6
    assert abs(gradient(recipes.dfpo(token, transform=dfpo.orth_proj))) < 1e-6
    assert abs(gradient(recipes.dfpo(token, transform=dfpo.none))) > 1e-3


def test_on_policy_both_transforms_change_nothing():
    rows = batch()
    rows["old_log_probs"] = rows["log_probs"]
    wanted = evaluate(recipes.grpo(aggregation=aggregation.token, surrogate=surrogates.reinforce), rows)
    for transform in TRANSFORMS:
        method = recipes.dfpo(recipes.grpo(aggregation=aggregation.token), transform=transform)
        np.testing.assert_allclose(prepare(method, rows)["group_constants"].weights, 1.0, rtol=1e-5)
        np.testing.assert_allclose(evaluate(method, rows)[1], wanted[1], rtol=1e-5, atol=1e-8)


def test_min_replace_does_not_cancel_where_advantages_do_not_sum_to_0_and_orth_proj_does():
    """After HA-DW, and with a fully masked sequence."""
    rows = batch()
    token = recipes.grpo(aggregation=aggregation.token)
    weighted = recipes.ha_dw(token, hadw.HADW(update=hadw.fixed(), initial=0.1))
    masked = rows | {"loss_mask": rows["loss_mask"].at[0].set(False)}
    for base, batch_ in ((weighted, rows), (token, masked)):
        assert np.any(np.abs(cancelled(recipes.dfpo(base), batch_)) > 1e-4)
        projected = recipes.dfpo(base, transform=dfpo.orth_proj)
        np.testing.assert_allclose(cancelled(projected, batch_), 0, atol=1e-6)


def test_orth_proj_without_an_advantage_leaves_the_ratios():
    rows = batch() | {"rewards": jnp.zeros(12)}
    method = recipes.dfpo(recipes.grpo(), transform=dfpo.orth_proj)
    plain = recipes.dfpo(recipes.grpo(), transform=dfpo.none)
    np.testing.assert_allclose(
        prepare(method, rows)["group_constants"].weights, prepare(plain, rows)["group_constants"].weights
    )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.floats(0.1, 5.0), min_size=8, max_size=8),
    st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=8, max_size=8),
)
def test_orth_proj_is_an_orthogonal_projection(ratio, advantages):
    groups = group_rows(jnp.zeros(8, jnp.int32))
    ratio, advantages = jnp.asarray(ratio), jnp.asarray(advantages)
    projected, _ = dfpo.orth_proj(ratio, advantages, groups)
    if np.any(np.asarray(advantages)):
        assert abs(float(jnp.sum(advantages * projected))) < 1e-4
    twice, _ = dfpo.orth_proj(projected, advantages, groups)
    np.testing.assert_allclose(twice, projected, atol=1e-4)
    assert float(jnp.linalg.norm(projected)) <= float(jnp.linalg.norm(ratio)) * (1 + 1e-5)


def test_the_constants_of_a_group_split_between_eight_devices_are_its_own():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = batch(rows=16)
    methods = [
        recipes.dfpo(recipes.balanced(), transform=transform, cancel_under_aggregation=True, **ablation)
        for transform in TRANSFORMS
        for ablation in ({}, {"stop_gradient": False}, {"global_scale": True})
    ]

    def constants(rows, axis_name=None):
        return [prepare(method, rows, axis_name=axis_name)["group_constants"] for method in methods]

    sharded = jax.shard_map(
        partial(constants, axis_name="data"), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    for split, whole in zip(
        jax.tree.leaves(compiled(sharded)(rows)), jax.tree.leaves(constants(rows)), strict=True
    ):
        np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-7)


def test_global_scale_takes_one_minimum_for_the_batch():
    rows = batch()
    method = recipes.dfpo(recipes.grpo(aggregation=aggregation.batch_token), global_scale=True)
    weights = np.asarray(prepare(method, rows)["group_constants"].weights)
    plain = recipes.dfpo(recipes.grpo(aggregation=aggregation.token), transform=dfpo.none)
    np.testing.assert_allclose(weights, np.min(prepare(plain, rows)["group_constants"].weights), rtol=1e-6)
    projected = replace(method, transform=dfpo.DriftFix(transform=dfpo.orth_proj, global_scale=True))
    assert abs(cancelled(projected, rows).sum()) < 1e-6
    assert np.any(np.abs(cancelled(projected, rows)) > 1e-4)


@pytest.mark.parametrize("transform", [*TRANSFORMS, dfpo.none])
@pytest.mark.parametrize("cancel", [False, True])
def test_without_stop_gradient_the_gradient_is_that_of_the_whole_group_s_expression(transform, cancel):
    """Plain sums over rows give what differentiating Σ ω_i w̃_i(θ) A_i log π_it over the whole batch gives."""
    with jax.enable_x64(True):
        rows = batch(3)
        base = recipes.grpo(aggregation=aggregation.sequence, sampler_correction=sampler.truncate)
        method = recipes.dfpo(base, transform=transform, stop_gradient=False, cancel_under_aggregation=cancel)
        made = prepare(method, rows)
        omega, advantages, mask = made["weights"].policy, made["advantages"], rows["loss_mask"]
        factor, _ = sampler.truncate(rows["old_log_probs"] - rows["sampler_log_probs"], mask)

        def whole(log_probs):
            product = jnp.exp(jnp.sum(log_probs - rows["old_log_probs"], axis=1, where=mask))
            scale = omega if cancel else jnp.ones_like(omega)
            moved, _ = transform(product * scale, advantages, group_rows(rows["group_ids"]))
            per_token = factor * log_probs * jnp.where(mask, (omega * moved / scale * advantages)[:, None], 0)
            return -jnp.sum(per_token)

        value, gradient, _ = evaluate(method, rows)
        wanted, wanted_gradient = jax.value_and_grad(whole)(rows["log_probs"])
        np.testing.assert_allclose(value, wanted, rtol=1e-9)
        np.testing.assert_allclose(gradient, wanted_gradient, atol=1e-10)
        held, _, _ = evaluate(replace(method, transform=replace(method.transform, stop_gradient=True)), rows)
        np.testing.assert_allclose(held, wanted, rtol=1e-9)
