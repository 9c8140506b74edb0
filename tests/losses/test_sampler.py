"""Sampler corrections: which tokens they weigh or mask, and what they leave alone."""

import jax.numpy as jnp
import numpy as np

from grpo_jax.losses import ratios, recipes, sampler
from tests.losses.batches import batch, evaluate, prepare

GAP = jnp.log(jnp.asarray([[0.4, 1.0, 3.0], [1.5, 1.5, 1.0]]))
MASK = jnp.asarray([[True, True, True], [True, True, False]])


def test_truncation_by_token_and_by_sequence():
    factor, reports = sampler.truncate(GAP, MASK)
    np.testing.assert_allclose(factor, [[0.4, 1.0, 2.0], [1.5, 1.5, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(reports["sampler/truncated_fraction"], [[0, 0, 1], [0, 0, 0]])
    factor, _ = sampler.truncate(jnp.where(MASK, GAP, 0), MASK, level=ratios.sequence, cap=1.2)
    np.testing.assert_allclose(factor[:, 0], [1.2 ** (1 / 3), 1.2], rtol=1e-6)


def test_a_two_sided_band_masks_and_reports_the_masked_share():
    factor, reports = sampler.band(GAP, MASK)
    np.testing.assert_array_equal(factor, [[0, 1, 0], [1, 1, 1]])
    np.testing.assert_array_equal(reports["sampler/masked_fraction"], factor == 0)
    rows = batch()
    _, _, totals = evaluate(recipes.grpo(sampler_correction=sampler.band), rows)
    gap, mask = np.asarray(rows["old_log_probs"] - rows["sampler_log_probs"]), np.asarray(rows["loss_mask"])
    outside = (np.abs(gap) > np.log(2)) & mask
    assert 0 < outside.sum() < mask.sum()
    np.testing.assert_allclose(
        totals.finalize()["sampler/masked_fraction"], outside.sum() / mask.sum(), rtol=1e-6
    )
    np.testing.assert_allclose(totals.finalize()["sampler/log_prob_gap"], np.abs(gap)[mask].mean(), rtol=1e-5)


def test_a_masked_token_loses_its_gradient_and_keeps_its_place_in_the_counts():
    rows = batch()
    plain, method = recipes.grpo(), recipes.grpo(sampler_correction=sampler.band)
    np.testing.assert_array_equal(
        prepare(plain, rows)["weights"].policy, prepare(method, rows)["weights"].policy
    )
    _, before, _ = evaluate(plain, rows)
    _, after, _ = evaluate(method, rows)
    gap = np.asarray(rows["old_log_probs"] - rows["sampler_log_probs"])
    np.testing.assert_allclose(after, np.where(np.abs(gap) <= np.log(2), before, 0), rtol=1e-6)


def test_fault_27_a_truncated_sampler_shows_as_a_constant_ratio():
    """p = (.5, .3, .15, .05) at top_p = .8 is drawn as (.625, .375): trainer over sampler is .8."""
    trainer, drawn = jnp.log(jnp.asarray([[0.5, 0.3]])), jnp.log(jnp.asarray([[0.625, 0.375]]))
    factor, _ = sampler.truncate(trainer - drawn, jnp.ones((1, 2), bool))
    np.testing.assert_allclose(factor, 0.8, rtol=1e-6)
    inside, _ = sampler.band(trainer - drawn, jnp.ones((1, 2), bool), low=0.9, high=1.1)
    np.testing.assert_array_equal(inside, 0)


def test_fault_28_a_sequence_correction_does_not_drop_long_sequences():
    length = 4000
    gap, mask = jnp.full((1, length), 0.002), jnp.ones((1, length), bool)
    _, reports = sampler.band(gap, mask, level=ratios.sequence, low=0.5, high=3.0)
    assert not np.any(reports["sampler/masked_fraction"])
    _, reports = sampler.band(gap, mask, level=ratios.sequence_product, low=0.5, high=3.0)
    assert np.all(reports["sampler/masked_fraction"])


def test_the_correction_carries_no_gradient():
    """The factor depends on old and sampler log-probs alone, so it scales each token's gradient."""
    rows = batch()
    _, plain, _ = evaluate(recipes.grpo(), rows)
    _, corrected, _ = evaluate(recipes.grpo(sampler_correction=sampler.truncate), rows)
    factor = np.minimum(np.exp(np.asarray(rows["old_log_probs"] - rows["sampler_log_probs"])), 2.0)
    np.testing.assert_allclose(corrected, factor * np.asarray(plain), rtol=1e-5)
