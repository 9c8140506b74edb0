"""Surrogates and ratios: values by hand, and gradients against finite differences under every rule."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import aggregation, dfpo, objective, ratios, recipes
from grpo_jax.losses.surrogates import cispo, clip, reinforce, sapo
from tests.losses.batches import batch, compiled, prepare

NOBODY = jnp.zeros((1, 1))


def at(surrogate, ratio, advantages, log_probs=NOBODY, **options):
    """ℓ of single tokens, one row each."""
    column = jnp.asarray(ratio, float)[:, None]
    log_probs = jnp.broadcast_to(log_probs, column.shape)
    value, reports = surrogate(column, log_probs, jnp.asarray(advantages, float)[:, None], **options)
    return np.asarray(value)[:, 0], {name: np.asarray(x)[:, 0] for name, x in reports.items()}


def test_fault_40_only_tokens_that_lose_their_gradient_are_counted_as_clipped():
    value, reports = at(clip, [0.5, 1.0, 1.5], [-1, 1, 1])
    np.testing.assert_allclose(value, [-0.8, 1.0, 1.2], rtol=1e-6)
    np.testing.assert_array_equal(reports["clip/low_fraction"], [True, False, False])
    np.testing.assert_array_equal(reports["clip/high_fraction"], [False, False, True])
    value, reports = at(clip, [0.5, 1.5], [1, -1])
    np.testing.assert_allclose(value, [0.5, -1.5])
    assert not any(np.any(x) for x in reports.values())


def test_clip_higher_dual_clip_and_symmetric():
    np.testing.assert_allclose(at(clip, [1.25, 1.35], [1, 1], clip_high=0.28)[0], [1.25, 1.28], rtol=1e-6)
    np.testing.assert_allclose(at(clip, [5.0, 5.0], [-1, 1], dual_clip=3.0)[0], [-3.0, 1.2], rtol=1e-6)
    value, reports = at(clip, [0.5, 1.5, 0.5, 1.5], [1, -1, -1, 1], symmetric=True)
    np.testing.assert_allclose(value, [0.8, -1.2, -0.8, 1.2], rtol=1e-6)
    assert reports["clip/low_fraction"].sum() == 2 and reports["clip/high_fraction"].sum() == 2


def test_symmetric_clip_drops_the_gradient_of_both_signs_outside_the_band():
    def gradient(symmetric):
        ratio, advantages = jnp.asarray([[0.5], [1.5], [1.1]]), jnp.asarray([[1.0], [-1.0], [1.0]])
        return jax.grad(lambda x: clip(x, x, advantages, symmetric=symmetric)[0].sum())(ratio)[:, 0]

    np.testing.assert_array_equal(gradient(True), [0, 0, 1])
    np.testing.assert_array_equal(gradient(False), [1, -1, 1])


def test_cispo_reinforce_and_sapo_by_hand():
    log_probs = jnp.asarray([[-2.0], [-0.5]])
    value, reports = at(cispo, [3.0, 0.5], [1, -1], log_probs, ratio_cap=1.5)
    np.testing.assert_allclose(value, [-3.0, 0.25])
    np.testing.assert_array_equal(reports["clip/high_fraction"], [True, False])
    np.testing.assert_allclose(at(reinforce, [3.0, 0.5], [1, -1], log_probs)[0], [-2.0, 0.5])
    # σ(0) · 4/τ = 2/τ, and the slope at ratio 1 is the plain policy gradient's.
    np.testing.assert_allclose(
        at(sapo, [1.0, 1.0], [1, -1], tau_positive=1.0, tau_negative=2.0)[0], [2.0, -1.0], rtol=1e-6
    )
    one = jnp.ones((1, 1))
    np.testing.assert_allclose(jax.grad(lambda x: sapo(x, x, one)[0].sum())(one), 1.0, rtol=1e-6)


def test_fault_28_the_sequence_ratio_is_a_geometric_mean():
    for length in (100, 1000, 4000):
        log_ratio, mask = jnp.full((1, length), 0.002), jnp.ones((1, length), bool)
        np.testing.assert_allclose(ratios.sequence(log_ratio, mask)[0, 0], np.exp(0.002), rtol=1e-5)
        np.testing.assert_allclose(
            ratios.sequence_product(log_ratio, mask)[0, 0], np.exp(0.002 * length), rtol=1e-3
        )


def test_the_product_is_clamped_and_says_so():
    log_ratio, mask = jnp.asarray([[15.0, 15.0], [-15.0, -15.0], [1.0, 200.0]]), jnp.ones((3, 2), bool)
    mask = mask.at[2, 1].set(False)
    product = ratios.sequence_product(jnp.where(mask, log_ratio, 0.0), mask)
    np.testing.assert_allclose(product[:, 0], np.exp([20.0, -20.0, 1.0]), rtol=1e-5)
    np.testing.assert_array_equal(ratios.is_clamped(log_ratio, mask)[:, 0], [True, True, False])


def test_sequence_token_has_the_value_of_sequence_and_each_token_s_own_gradient():
    log_ratio, mask = jnp.asarray([[0.1, 0.3, -0.1]]), jnp.ones((1, 3), bool)
    np.testing.assert_allclose(
        ratios.sequence_token(log_ratio, mask), ratios.sequence(log_ratio, mask), rtol=1e-6
    )
    own = jax.grad(lambda x: ratios.sequence_token(x, mask)[0, 0])(log_ratio)
    np.testing.assert_allclose(own, [[np.exp(0.1), 0, 0]], rtol=1e-5)
    shared = jax.grad(lambda x: ratios.sequence(x, mask)[0, 0])(log_ratio)
    np.testing.assert_allclose(shared, [[np.exp(0.1) / 3] * 3], rtol=1e-5)


SURROGATES = {
    "clip": recipes.grpo(),
    "clip_dual": recipes.grpo(surrogate=partial(clip, dual_clip=1.2)),
    "clip_symmetric": recipes.grpo(surrogate=partial(clip, symmetric=True)),
    "clip_sequence": recipes.gspo(clip_low=0.1, clip_high=0.1),
    "reinforce": recipes.grpo(surrogate=reinforce),
    "cispo": recipes.cispo(ratio_cap=1.2),
    "sapo": recipes.sapo(),
    "dfpo_min": recipes.dfpo(recipes.grpo()),
    "dfpo_orth": recipes.dfpo(recipes.grpo(), transform=dfpo.orth_proj, ratio=ratios.sequence),
}
RULES = [rule(max_length=7) if name == "constant" else rule for name, rule in aggregation.RULES.items()]


def frozen_cispo(ratio, log_probs, advantages, *, weight):
    return weight * advantages * log_probs, {}


@cache
def differences(name: str):
    """(gradient, central differences) of one surrogate, given the weights of any rule."""
    method = SURROGATES[name]

    def loss(log_probs, given, method):
        return objective.loss(method, log_probs=log_probs, **given)[0]

    def both(log_probs, given):
        gradient = jax.grad(loss)(log_probs, given, method)
        checked = method
        if name == "cispo":  # its stop-gradient hides the ratio: hold it at this point's value
            ratio = method.ratio(log_probs - given["old_log_probs"], given["loss_mask"])
            checked = replace(method, surrogate=partial(frozen_cispo, weight=jnp.minimum(ratio, 1.2)))
        steps = jnp.eye(log_probs.size).reshape(-1, *log_probs.shape) * 1e-6
        up, down = (
            jax.vmap(lambda step, sign=sign: loss(log_probs + sign * step, given, checked))(steps)
            for sign in (1, -1)
        )
        return gradient, ((up - down) / 2e-6).reshape(log_probs.shape)

    return compiled(both)


@pytest.mark.parametrize("name", SURROGATES)
def test_gradients_agree_with_finite_differences_under_every_rule(name):
    with jax.enable_x64(True):
        rows = batch(5, rewards="graded", rows=9, tokens=4)
        for rule in RULES:
            given = prepare(replace(SURROGATES[name], aggregation=rule), rows)
            gradient, numeric = differences(name)(rows["log_probs"], given)
            assert np.any(np.asarray(gradient) != 0)
            np.testing.assert_allclose(gradient, numeric, atol=2e-9, rtol=1e-6)
