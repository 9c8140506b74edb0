"""HA-DW: the paper's and the authors' numbers, the anchor's rules, and what the state must survive."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.losses import hadw, objective, recipes, theory
from grpo_jax.losses.advantages import advantage, no_scale
from tests.losses.batches import NUM_GROUPS, batch

CENTRED = recipes.grpo(advantage=partial(advantage, scale=no_scale))
G = 8


def weighted(method, options, rewards, state=None):
    """Φ_i A_i of one group, the state after it and the metrics."""
    method = recipes.ha_dw(method, options)
    return objective.advantages(
        method,
        rewards=jnp.asarray(rewards, float),
        group_ids=jnp.zeros(len(rewards), jnp.int32),
        num_groups=1,
        history=objective.init_history(method) if state is None else state,
    )


def successes(k: int) -> list[float]:
    return [1.0] * k + [0.0] * (G - k)


@pytest.mark.parametrize(
    ("k", "factors", "products"),
    [
        (1, (1.8914888, 0.8934761), (1.6550527, -0.1116845)),
        (3, (1.4730930, 1.1472460), (0.9206831, -0.4302172)),
        (7, (0.8934761, 1.8914888), (0.1116845, -1.6550527)),
    ],
)
def test_the_paper_s_numbers(k, factors, products):
    with jax.enable_x64(True):
        options = hadw.HADW(update=hadw.fixed(), initial=0.5)
        values, _, _ = weighted(CENTRED, options, successes(k))
        np.testing.assert_allclose(np.asarray(values)[[0, -1]], products, atol=1e-6)
        centred = jnp.asarray(successes(k)) - k / G
        phi = hadw.phi(centred, jnp.full(G, k / G), 0.5)
        np.testing.assert_allclose(phi[jnp.asarray([0, -1])], factors, atol=1e-6)


@pytest.mark.parametrize(
    ("k", "products"),
    [(1, (5.4013648, -0.3644892)), (3, (2.0526062, -0.9591428)), (7, (0.3644892, -5.4013648))],
)
def test_the_authors_code_by_options_alone(k, products):
    """λ = 1.5, window 10, ddof 1, eps 1e-6, the belief after the batch: 0.5 here, by its history."""
    with jax.enable_x64(True):
        options = hadw.HADW(update=hadw.window(window=10), scale=1.5, anchor="posterior")
        method = recipes.grpo(advantage=partial(advantage, ddof=1, eps=1e-6))
        state = hadw.init(options)
        for mean in (1 - k / G,):  # then the mean of both batches is a half
            state, _ = hadw.update(options, state, jnp.asarray(mean))
        values, _, metrics = weighted(method, options, successes(k), state)
        np.testing.assert_allclose(metrics["hadw/anchor_posterior"], 0.5)
        np.testing.assert_allclose(np.asarray(values)[[0, -1]], products, atol=1e-6)


unit = st.floats(0.05, 0.95)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, G - 1), unit, st.floats(0.1, 3.0))
def test_identities(k, anchor, scale):
    def of(rewards, anchor, scale):
        options = hadw.HADW(update=hadw.fixed(), initial=anchor, scale=scale)
        return np.asarray(weighted(CENTRED, options, rewards)[0])

    values = of(successes(k), anchor, scale)
    wanted = theory.hadw_advantage_sum(k / G, anchor, G, scale=scale)
    np.testing.assert_allclose(values.sum(), wanted, atol=1e-5)
    np.testing.assert_allclose(of(successes(k), anchor, 2 * scale), 2 * values, rtol=1e-5)
    flipped = [1 - r for r in successes(k)]
    np.testing.assert_allclose(of(flipped, 1 - anchor, scale), -values, rtol=1e-5)


def test_phi_factors_out_of_the_clip_and_never_flips_a_sign():
    rows = batch()
    groups = {"group_ids": rows["group_ids"], "num_groups": NUM_GROUPS}
    method = recipes.ha_dw(CENTRED, hadw.HADW(update=hadw.fixed(), initial=0.4))
    plain, _, _ = objective.advantages(CENTRED, rewards=rows["rewards"], **groups)
    values, _, _ = objective.advantages(
        method, rewards=rows["rewards"], history=objective.init_history(method), **groups
    )
    phi = values / plain
    assert np.all(phi > 0)
    ratio, log_probs = jnp.exp(rows["log_probs"] - rows["old_log_probs"]), rows["log_probs"]
    inside, _ = method.surrogate(ratio, log_probs, values[:, None])
    outside, _ = method.surrogate(ratio, log_probs, plain[:, None])
    np.testing.assert_allclose(inside, phi[:, None] * outside, rtol=1e-5)


def trace(options, means, state=None):
    state = hadw.init(options) if state is None else state
    seen = []
    for mean in means:
        state, anchors = hadw.update(options, state, jnp.asarray(mean, float))
        seen.append([float(x) for x in anchors])
    return np.array(seen), state


def test_window_ema_and_fixed_by_hand():
    means = [0.2, 0.4, 0.9]
    window, _ = trace(hadw.HADW(update=hadw.window(window=2)), means)
    np.testing.assert_allclose(
        window[:, 0], [0.2, 0.2, 0.3], rtol=1e-6
    )  # initial=None: the first batch's mean
    np.testing.assert_allclose(window[:, 1], [0.2, 0.3, 0.65], rtol=1e-6)
    np.testing.assert_allclose(window[:, 2], [1.0, 0.5, 0.5], rtol=1e-6)
    ema, _ = trace(hadw.HADW(update=hadw.ema(window=4), initial=0.5), means)
    np.testing.assert_allclose(ema[:, 1], [0.425, 0.41875, 0.5390625], rtol=1e-6)
    fixed, _ = trace(hadw.HADW(update=hadw.fixed(), initial=0.3), means)
    np.testing.assert_allclose(fixed[:, :2], 0.3, rtol=1e-6)
    single, _ = trace(hadw.HADW(update=hadw.window(window=1)), means)
    np.testing.assert_allclose(single[:, 1], means, rtol=1e-6)


def test_soft_without_a_floor_is_deadlocked_and_with_one_is_not():
    means = [0.9] * 5
    stuck, _ = trace(hadw.HADW(update=hadw.soft(eta_min=0.0), initial=0.5), means)
    np.testing.assert_allclose(stuck[:, 1], 0.5)
    moving, _ = trace(hadw.HADW(update=hadw.soft(), initial=0.5), means)
    assert moving[-1, 1] > 0.55 and np.all(moving[:, 2] >= 0.05)


def test_prior_and_posterior_anchor():
    for anchor, used in (("prior", 0.5), ("posterior", 0.25)):
        options = hadw.HADW(update=hadw.window(), initial=0.5, anchor=anchor)
        values, _, _ = weighted(CENTRED, options, [1.0, 0, 0, 0])
        np.testing.assert_allclose(values[0], 1.3 * np.exp(used - 0.25) * 0.75, rtol=1e-6)


def test_the_batch_mean_counts_groups_that_do_not_teach_and_may_be_given():
    method = recipes.ha_dw(recipes.grpo(), hadw.HADW(update=hadw.ema(window=1)))
    arguments = {
        "rewards": jnp.asarray([1.0, 1, 1, 1, 0, 1]),
        "group_ids": jnp.asarray([0, 0, 0, 0, 1, 1]),
        "num_groups": 2,
        "history": objective.init_history(method),
    }
    _, _, metrics = objective.advantages(method, **arguments)
    np.testing.assert_allclose(metrics["hadw/anchor_posterior"], 5 / 6, rtol=1e-6)
    _, _, metrics = objective.advantages(method, batch_mean=jnp.asarray(0.125), **arguments)
    np.testing.assert_allclose(metrics["hadw/anchor_posterior"], 0.125, rtol=1e-6)


def test_a_batch_without_a_score_moves_nothing():
    method = recipes.ha_dw(recipes.grpo(), hadw.HADW(initial=0.4))
    before = objective.init_history(method)
    values, after, metrics = objective.advantages(
        method,
        rewards=jnp.full(4, jnp.nan),
        scored=jnp.zeros(4, bool),
        group_ids=jnp.zeros(4, jnp.int32),
        num_groups=1,
        history=before,
    )
    assert np.all(values == 0) and all(np.isfinite(x) for x in metrics.values())
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_rewards_of_another_range_are_mapped_to_0_1_first():
    plain = hadw.HADW(update=hadw.fixed(), initial=0.6)
    shifted = hadw.HADW(update=hadw.fixed(), initial=0.6, reward_range=(-1.0, 1.0))
    rewards = np.array([1.0, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_allclose(
        weighted(CENTRED, shifted, 2 * rewards - 1)[0],
        2 * weighted(CENTRED, plain, rewards)[0],
        rtol=1e-5,
    )


def test_metrics_are_the_mean_factor_of_each_side_of_the_anchor():
    options = hadw.HADW(update=hadw.fixed(), initial=0.5, scale=1.0)
    _, _, metrics = weighted(CENTRED, options, [1.0, 0, 0, 0])
    factors = np.exp([0.25, -0.25, -0.25, -0.25])
    np.testing.assert_allclose(metrics["hadw/phi_mean_hard"], factors.mean(), rtol=1e-6)
    assert metrics["hadw/phi_mean_easy"] == 0 and metrics["hadw/eta"] == 0


@pytest.mark.parametrize("update", [hadw.soft(history=4), hadw.window(window=3), hadw.ema(), hadw.fixed()])
def test_the_state_saved_and_restored_continues_exactly_under_jit(update):
    """The authors' code forgets the anchor on resume."""
    options = hadw.HADW(update=update, initial=0.3)
    means = [0.1, 0.8, 0.4, 0.4, 0.9, 0.2]
    step = jax.jit(partial(hadw.update, options))
    state, straight = hadw.init(options), []
    for index, mean in enumerate(means):
        if index == 3:
            leaves, structure = jax.tree.flatten(state)
            saved = json.dumps([np.asarray(leaf).tolist() for leaf in leaves])
            restored = [jnp.asarray(x, leaf.dtype) for x, leaf in zip(json.loads(saved), leaves, strict=True)]
            state = jax.tree.unflatten(structure, restored)
        state, anchors = step(state, jnp.asarray(mean))
        straight.append(anchors.posterior)
    np.testing.assert_allclose(straight, trace(options, means)[0][:, 1], rtol=1e-6)
    shapes = jax.tree.map(jnp.shape, hadw.init(options))
    assert shapes == jax.tree.map(jnp.shape, state)


def test_errors(no_shape_checker):
    with pytest.raises(ValueError, match="anchor: expected"):
        hadw.HADW(anchor="after")
    with pytest.raises(ValueError, match="reward_range: expected"):
        hadw.HADW(reward_range=(1.0, 0.0))
