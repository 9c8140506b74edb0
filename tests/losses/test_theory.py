"""The papers' tables, and the closed forms against simulation and enumeration."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import theory

P = np.array([0.01, 0.1, 0.25, 0.9])


@pytest.mark.parametrize(
    ("group_size", "wanted"),
    [
        (8, [0.129441, 0.175583, 0.277800, 0.824417]),
        (4, [0.253781, 0.290576, 0.362069, 0.709424]),
        (2, [0.5] * 4),
    ],
)
def test_expected_group_mean_of_a_mixed_group(group_size, wanted):
    np.testing.assert_allclose(theory.expected_group_mean(jnp.asarray(P), group_size), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("group_size", "high", "wanted"),
    [(4, 0.5, 0.776969), (6, 0.5, 0.689725), (8, 0.5, 0.640948), (6, 0.25, 0.827765), (8, 0.25, 0.781133)],
)
def test_average_probability_of_underestimating(group_size, high, wanted):
    got = theory.average_underestimate_probability(group_size, high=high)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_continuous_rewards():
    scale = math.gamma(8) / (math.gamma(2) * math.gamma(6))
    alike, mean = theory.continuous_group(lambda r: scale * r * (1 - r) ** 5, 4, sigma=0.3)
    np.testing.assert_allclose([alike, mean], [0.553531, 0.279552], atol=1e-5)
    rewards = np.random.default_rng(0).beta(2, 6, (200_000, 4))
    spread = np.ptp(rewards, axis=1) > 0.3
    np.testing.assert_allclose(1 - alike, spread.mean(), atol=5e-3)
    np.testing.assert_allclose(mean, rewards[spread].mean(), atol=2e-3)


def mixed_groups(p: float, group_size: int):
    """Every mixed outcome of a group as (number right, its probability given that the group is mixed)."""
    k = np.arange(1, group_size)
    probability = np.array([math.comb(group_size, i) * p**i * (1 - p) ** (group_size - i) for i in k])
    return k, probability / probability.sum()


@pytest.mark.parametrize("group_size", [2, 5, 8])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.8])
def test_bias_and_advantages_by_enumeration(p, group_size):
    k, probability = mixed_groups(p, group_size)
    mean = np.sum(probability * k / group_size)
    np.testing.assert_allclose(theory.expected_group_mean(p, group_size), mean, rtol=1e-5)
    np.testing.assert_allclose(theory.advantage_bias(p, group_size), p - mean, atol=1e-6)
    share = k / group_size  # of right responses in the group, which is also p̂
    right = np.sum(probability * share * (1 - share)) / np.sum(probability * share)
    wrong = np.sum(probability * (1 - share) * -share) / np.sum(probability * (1 - share))
    np.testing.assert_allclose(theory.expected_advantage(p, group_size, right=True), right, rtol=1e-5)
    np.testing.assert_allclose(theory.expected_advantage(p, group_size, right=False), wrong, rtol=1e-5)
    for eps in (0.0, 0.1):
        short = np.sum(probability[share - p > eps + 1e-12])
        got = theory.underestimate_probability(p + 1e-7, group_size, eps=eps)
        np.testing.assert_allclose(got, short, atol=1e-5)


def test_the_bias_has_the_paper_s_sign_and_a_gradient():
    p = jnp.asarray([0.05, 0.2, 0.49, 0.51, 0.8])
    np.testing.assert_array_equal(np.sign(theory.advantage_bias(p, 8)), [-1, -1, -1, 1, 1])
    slope = jax.grad(lambda p: theory.expected_group_mean(p, 8))(0.3)
    step = (theory.expected_group_mean(0.31, 8) - theory.expected_group_mean(0.29, 8)) / 0.02
    np.testing.assert_allclose(slope, step, rtol=1e-2)


def test_shared_residue():
    advantages = jnp.asarray([[1.0, 1.0, -1.0, -1.0]])
    assert theory.shared_residue(advantages, jnp.ones((1, 4))) == 0
    ratios = jnp.asarray([[1.2, 0.8, 1.0, 1.4]])
    np.testing.assert_allclose(theory.shared_residue(advantages, ratios), [0.4 / 4.4], rtol=1e-5)
