"""Advantages: numbers by hand, the faults of centring and scaling, and rounding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.losses import objective, recipes
from grpo_jax.losses.advantages import (
    advantage,
    batch_advantage_std,
    batch_std,
    group_std,
    leave_one_out,
    no_scale,
)
from grpo_jax.losses.groups import group_rows


def advantages(rewards, group_ids=None, **options):
    rewards = jnp.asarray(rewards, jnp.float32)
    group_ids = jnp.zeros(len(rewards), jnp.int32) if group_ids is None else jnp.asarray(group_ids)
    return np.asarray(advantage(rewards, group_rows(group_ids), **options))


def test_rewards_1_2_3():
    np.testing.assert_allclose(advantages([1, 2, 3], scale=no_scale), [-1, 0, 1])
    np.testing.assert_allclose(advantages([1, 2, 3], eps=0.0), [-1.2247449, 0, 1.2247449], rtol=1e-6)
    np.testing.assert_allclose(advantages([1, 2, 3], eps=0.0, ddof=1), [-1, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(advantages([1, 2, 3], baseline=leave_one_out, scale=no_scale), [-1.5, 0, 1.5])


def test_fault_16_equal_rewards_give_exactly_zero_whatever_the_mean_rounds_to():
    for count in range(2, 17):
        rewards = jnp.repeat(jnp.arange(1, 10) / 10, 16).astype(jnp.float32)
        ids = jnp.repeat(jnp.arange(9), 16)
        ids = jnp.where(jnp.tile(jnp.arange(16), 9) < count, ids, -1)
        for scale in (group_std, batch_std, batch_advantage_std, no_scale):
            values = advantage(rewards, group_rows(ids, 9), scale=scale, eps=1e-9)
            assert np.all(np.asarray(values) == 0), (count, scale)


def test_a_large_group_s_rounding_is_no_larger():
    """The mean of 5000 times .7, summed in float32, is off by more than the tolerance."""
    rewards = np.full(5000, 0.7, np.float32)
    assert np.all(advantages(rewards, scale=no_scale) == 0)


@settings(max_examples=12, deadline=None)
@given(st.permutations(range(5)), st.integers(-6, 6), st.sampled_from([group_std, no_scale, batch_std]))
def test_advantages_within_rounding_of_zero_take_no_side_in_any_row_order(order, exponent, scale):
    """.4 is the mean of .1 .3 .5 .7 .4 but for a rounding whose sign depends on the order."""
    rewards = np.array([0.1, 0.3, 0.5, 0.7, 0.4], np.float32)[list(order)] * np.float32(10.0**exponent)
    values = advantages(rewards, scale=scale, eps=0.0)
    assert values[order.index(4)] == 0
    assert np.count_nonzero(values) == 4


def test_rounding_is_judged_by_the_group_s_own_size():
    """Rewards of one group may be a million times those of another."""
    values = advantages([1e6, 3e6, 0.25, 0.75], [0, 0, 1, 1], scale=no_scale)
    np.testing.assert_allclose(values, [-1e6, 1e6, -0.25, 0.25])


def test_rounding_is_dropped_in_float64_at_its_own_precision():
    with jax.enable_x64(True):
        rewards = jnp.asarray([0.1, 0.3, 0.5, 0.7, 0.4, 0.4 + 1e-9])
        groups = group_rows(jnp.asarray([0, 0, 0, 0, 0, 1]))
        assert advantage(rewards, groups)[4] == 0
        pair = advantage(jnp.asarray([0.4, 0.4 + 1e-9]), group_rows(jnp.asarray([0, 0])), scale=no_scale)
        assert np.all(np.sign(pair) == [-1, 1])


def test_fault_18_precedence_and_modes():
    np.testing.assert_allclose(
        advantages([1, 0, 0, 1], ddof=1, eps=0.0), [0.8660254, -0.8660254, -0.8660254, 0.8660254], rtol=1e-6
    )
    rewards, ids = [0, 0, 0, 10, 0, 0.1, 0.1, 0.1], [0] * 4 + [1] * 4
    for scale, wanted in {
        group_std: [-0.5, -0.5, -0.5, 1.5, -1.497, 0.499, 0.499, 0.499],
        batch_std: [-0.710, -0.710, -0.710, 2.130, -0.0213, 0.0071, 0.0071, 0.0071],
        no_scale: [-2.5, -2.5, -2.5, 7.5, -0.075, 0.025, 0.025, 0.025],
    }.items():
        got = advantages(rewards, ids, scale=scale, ddof=1, eps=1e-4)
        np.testing.assert_allclose(got, wanted, atol=6e-4, rtol=1e-3)


def test_batch_advantage_std_counts_each_sequence_once():
    """Centred rewards ±1 and ±3: their population std over four sequences is √5."""
    got = advantages([0, 2, 0, 6], [0, 0, 1, 1], scale=batch_advantage_std, eps=0.0)
    np.testing.assert_allclose(got, np.array([-1, 1, -3, 3]) / np.sqrt(5), rtol=1e-6)


@pytest.mark.parametrize("baseline", [None, leave_one_out])
@pytest.mark.parametrize("ddof", [0, 1])
def test_fault_19_a_group_of_one_has_advantage_zero(baseline, ddof):
    options = {"ddof": ddof} | ({} if baseline is None else {"baseline": baseline})
    assert advantages([0.8], **options) == [0.0]
    assert np.all(advantages([0.8, 0, 1], [0, 1, 1], **options)[0] == 0)


def test_fault_21_an_unscored_sample_is_not_a_reward_of_zero():
    def values(scored):
        advantages_, _, _ = objective.advantages(
            recipes.grpo(advantage=partial(advantage, ddof=1, eps=1e-4)),
            rewards=jnp.asarray([1.0, 1.0, jnp.nan if scored is not None else 0.0, 0.0]),
            group_ids=jnp.zeros(4, jnp.int32),
            scored=scored,
        )
        return advantages_

    got = values(jnp.asarray([True, True, False, True]))
    np.testing.assert_allclose(got, [0.577, 0.577, 0, -1.155], atol=1e-3)
    np.testing.assert_allclose(values(None), [0.866, 0.866, -0.866, -0.866], atol=1e-3)


def test_fault_50_groups_go_by_id_and_not_by_position():
    rewards = np.arange(1.0, 7.0)
    ids = np.array([0, 0, 0, 1, 1, 1])
    wanted = advantages(rewards, ids, scale=no_scale)
    np.testing.assert_allclose(wanted, [-1, 0, 1, -1, 0, 1])
    order = np.array([3, 0, 5, 1, 4, 2])
    np.testing.assert_allclose(advantages(rewards[order], ids[order], scale=no_scale), wanted[order])


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=8, max_size=8))
def test_leave_one_out_is_the_mean_of_the_others(rewards):
    got = advantages(rewards, baseline=leave_one_out, scale=no_scale)
    others = [r - (sum(rewards) - r) / 7 for r in rewards]
    np.testing.assert_allclose(got, others, atol=1e-6)


def test_the_callers_rewards_are_not_edited():
    rewards = np.array([1.0, 0.0, 1.0], np.float32)
    before = rewards.copy()
    advantages(rewards)
    np.testing.assert_array_equal(rewards, before)
