"""Aggregation rules: the identities that define them, the normalisation faults, and a rule made here."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.losses import aggregation, theory
from grpo_jax.losses.advantages import advantage
from grpo_jax.losses.aggregation import (
    balanced,
    balanced_mass,
    balanced_unit,
    batch_token,
    constant,
    sequence,
    sequence_sum,
    token,
)
from grpo_jax.losses.groups import group_rows, group_sums

G = 8


def omega(rule, advantages, lengths, group_ids=None) -> np.ndarray:
    lengths = jnp.asarray(lengths, jnp.float32)
    ids = jnp.zeros(lengths.shape, jnp.int32) if group_ids is None else jnp.asarray(group_ids, jnp.int32)
    return np.asarray(rule(jnp.asarray(advantages, jnp.float32), lengths, *group_sums(ids)))


def binary(num_right: int, scale_eps: float = 0.0) -> np.ndarray:
    rewards = jnp.asarray([1.0] * num_right + [0.0] * (G - num_right))
    return np.asarray(advantage(rewards, group_rows(jnp.zeros(G, jnp.int32)), eps=scale_eps))


right_counts = st.integers(1, G - 1)
lengths_of_group = st.lists(st.integers(1, 20), min_size=G, max_size=G)
SIGNED = [balanced, balanced_mass, balanced_unit]


def test_every_rule_by_hand():
    """Two groups: lengths 1, 3 and 2, 2, 4; right, wrong and right, wrong, wrong."""
    lengths, ids = [1, 3, 2, 2, 4], [0, 0, 1, 1, 1]
    advantages = [1, -1, 2, -1, -1]
    wanted = {
        sequence: [1 / 4, 1 / 12, 1 / 12, 1 / 12, 1 / 24],
        sequence_sum: [1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6],
        token: [1 / 8, 1 / 8, 1 / 16, 1 / 16, 1 / 16],
        batch_token: [1 / 12] * 5,
        constant(max_length=10): [1 / 40, 1 / 40, 1 / 60, 1 / 60, 1 / 60],
        balanced: [1 / 4, 1 / 12, 1 / 12, 2 / 36, 2 / 36],
        balanced_mass: [1 / 4, 1 / 12, 1 / 12, 2 / 36, 2 / 36],
        balanced_unit: [1 / 4, 1 / 12, 1 / 12, 2 / 36, 2 / 36],
    }
    assert len(wanted) == len(aggregation.RULES)
    for rule, values in wanted.items():
        np.testing.assert_allclose(omega(rule, advantages, lengths, ids), values, rtol=1e-6)


@settings(max_examples=12, deadline=None)
@given(right_counts, lengths_of_group)
def test_side_totals_and_loss_values(num_right, lengths):
    """At ratio 1 a rule's loss is −Σ wA: 0 for sequence and balanced, tied to the length gap for token."""
    advantages, lengths = binary(num_right), np.array(lengths, float)
    right = advantages > 0
    right_length, wrong_length = lengths[right].mean(), lengths[~right].mean()
    pull = {
        rule: omega(rule, advantages, lengths) * lengths * advantages
        for rule in (sequence, token, balanced, balanced_mass, balanced_unit)
    }
    side = theory.balanced_side_total(num_right, G)
    for rule in (sequence, balanced, balanced_mass, balanced_unit):
        np.testing.assert_allclose(pull[rule][right].sum(), side, rtol=1e-5)
        np.testing.assert_allclose(-pull[rule][~right].sum(), side, rtol=1e-5)
    totals = theory.token_side_totals(num_right, G, right_length, wrong_length)
    np.testing.assert_allclose(pull[token][right].sum(), totals[0], rtol=1e-5)
    np.testing.assert_allclose(-pull[token][~right].sum(), totals[1], rtol=1e-5)
    np.testing.assert_allclose(totals[0] / totals[1], right_length / wrong_length, rtol=1e-5)
    loss = theory.token_loss_value(num_right, G, right_length, wrong_length)
    np.testing.assert_allclose(-pull[token].sum(), loss, atol=1e-5)


@settings(max_examples=12, deadline=None)
@given(right_counts, lengths_of_group)
def test_net_coefficient_on_a_token_that_all_responses_share(num_right, lengths):
    advantages, lengths = binary(num_right), np.array(lengths, float)
    right = advantages > 0
    net = {
        rule: np.sum(omega(rule, advantages, lengths) * advantages) for rule in (token, sequence, balanced)
    }
    np.testing.assert_allclose(net[token], 0, atol=1e-6)
    wanted = theory.sequence_shared_coefficient(jnp.asarray(advantages), jnp.asarray(lengths, jnp.float32))
    np.testing.assert_allclose(net[sequence], wanted, atol=1e-6)
    means = lengths[right].mean(), lengths[~right].mean()
    wanted = theory.balanced_shared_coefficient(num_right, G, *means)
    np.testing.assert_allclose(net[balanced], wanted, atol=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=G, max_size=G), st.integers(1, 30))
def test_at_equal_lengths_the_rules_coincide(rewards, length):
    advantages = advantage(jnp.asarray(rewards), group_rows(jnp.zeros(G, jnp.int32)))
    signed = np.asarray(advantages) != 0
    lengths = [length] * G
    wanted = omega(sequence, advantages, lengths)
    np.testing.assert_allclose(omega(token, advantages, lengths), wanted, rtol=1e-5)
    for rule in (balanced, balanced_mass):
        np.testing.assert_allclose(omega(rule, advantages, lengths)[signed], wanted[signed], rtol=1e-5)


@settings(max_examples=12, deadline=None)
@given(right_counts, lengths_of_group, st.integers(2, 9))
def test_stretching_one_side_leaves_balanced_side_totals(num_right, lengths, factor):
    advantages, lengths = binary(num_right), np.array(lengths, float)
    right = advantages > 0
    stretched = np.where(right, lengths * factor, lengths)
    for rule in SIGNED:
        before = omega(rule, advantages, lengths) * lengths * np.abs(advantages)
        after = omega(rule, advantages, stretched) * stretched * np.abs(advantages)
        for side in (right, ~right):
            np.testing.assert_allclose(after[side].sum(), before[side].sum(), rtol=1e-5)


@settings(max_examples=12, deadline=None)
@given(right_counts, lengths_of_group)
def test_within_a_side_balanced_weighs_tokens_alike_and_sequence_by_length(num_right, lengths):
    advantages = binary(num_right)
    for side in (advantages > 0, advantages < 0):
        weights = omega(balanced, advantages, lengths)[side]
        np.testing.assert_allclose(weights, weights[0], rtol=1e-6)
        per_sequence = omega(sequence, advantages, lengths)[side] * np.array(lengths)[side]
        np.testing.assert_allclose(per_sequence, per_sequence[0], rtol=1e-6)


@settings(max_examples=12, deadline=None)
@given(right_counts, lengths_of_group)
def test_balanced_is_sequence_with_the_mean_length_of_the_own_side(num_right, lengths):
    advantages, lengths = binary(num_right), np.array(lengths, float)
    right = advantages > 0
    own = np.where(right, lengths[right].mean(), lengths[~right].mean())
    for rule in SIGNED:
        np.testing.assert_allclose(
            omega(rule, advantages, lengths) * (np.abs(advantages) if rule is balanced_unit else 1),
            omega(sequence, advantages, own) * (np.abs(advantages) if rule is balanced_unit else 1),
            rtol=1e-5,
        )


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=G, max_size=G).filter(
        lambda r: len(set(r)) > 1
    ),
    lengths_of_group,
)
def test_mass_rules_give_each_side_its_mass(rewards, lengths):
    advantages = np.asarray(advantage(jnp.asarray(rewards), group_rows(jnp.zeros(G, jnp.int32))))
    for rule in (balanced_mass, balanced_unit):
        pull = omega(rule, advantages, lengths) * np.array(lengths) * np.abs(advantages)
        for side in (advantages > 0, advantages < 0):
            np.testing.assert_allclose(pull[side].sum(), np.abs(advantages[side]).sum() / G, rtol=1e-5)


def test_advantage_zero_and_empty_sequences_are_on_neither_side():
    advantages, lengths = [1.0, 1.0, -2.0, 0.0], [2, 0, 4, 6]
    for rule in (balanced, balanced_mass):
        np.testing.assert_allclose(omega(rule, advantages, lengths), [1 / 8, 0, 1 / 16, 0], rtol=1e-6)
    np.testing.assert_allclose(omega(balanced_unit, advantages, lengths), [1 / 8, 0, 1 / 16, 0], rtol=1e-6)


def loss_of_ones(rule, lengths, group_ids=None, advantages=None) -> float:
    """The aggregate of a loss of 1 on every token."""
    lengths = np.array(lengths, float)
    weights = omega(rule, np.ones_like(lengths) if advantages is None else advantages, lengths, group_ids)
    return float(np.sum(np.where(lengths > 0, weights * lengths, 0.0)))


def test_fault_1_the_normaliser_is_that_of_the_optimizer_window():
    """Slices of 4, 2, 3, 1 tokens, two per window: a loss of 1 everywhere gives 1 in each window."""
    assert loss_of_ones(batch_token, [4, 2]) == pytest.approx(1.0)
    assert loss_of_ones(batch_token, [3, 1]) == pytest.approx(1.0)


def test_faults_4_and_5_the_token_mean_is_not_a_mean_of_means():
    """6 tokens of loss 1 and 2 of loss 4 on two micro-batches or devices: 1.75; 10 and 2 tokens: 1.5."""
    for counts, wanted in (([6, 2], 1.75), ([10, 2], 1.5)):
        weights = omega(batch_token, [1, 1], counts)
        assert np.sum(weights * np.array(counts) * [1, 4]) == pytest.approx(wanted)


def test_fault_6_every_term_uses_the_same_global_counts():
    lengths, ids = [3, 5, 1, 5], [0, 0, 1, 1]
    for rule in (token, batch_token, sequence):
        assert loss_of_ones(rule, lengths, ids) == pytest.approx(1.0)


def test_fault_8_the_constant_rule_counts_sequences_too():
    assert loss_of_ones(constant(max_length=8), [2] * 4) == pytest.approx(0.25)


def test_fault_10_lengths_are_sums_of_the_loss_mask():
    """10 tokens of which 6 are tool output: a loss of 1 on the other 4 is 1, not 0.4."""
    assert loss_of_ones(token, [4]) == pytest.approx(1.0)


@pytest.mark.parametrize("max_length", [None, 0, -3])
def test_constant_needs_a_positive_max_length(max_length):
    with pytest.raises(ValueError, match="max_length: "):
        constant(max_length=max_length)
