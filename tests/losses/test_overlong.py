"""Length penalty and the mask of truncated completions."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import objective, recipes
from grpo_jax.losses.advantages import advantage, no_scale
from grpo_jax.losses.overlong import mask_truncated, overlong_penalty


def test_fault_23_the_penalty_by_hand_and_without_a_buffer():
    lengths = jnp.asarray([15, 16, 18, 20, 25])
    penalty = overlong_penalty(lengths, max_length=20, cache_length=4)
    np.testing.assert_allclose(penalty, [0, 0, -0.5, -1, -1])
    for cache_length in (0, 21):
        with pytest.raises(ValueError, match="cache_length: expected between 1 and max_length = 20"):
            overlong_penalty(lengths, max_length=20, cache_length=cache_length)
    with pytest.raises(ValueError, match="lengths: expected none below 0; got -2"):
        overlong_penalty(jnp.asarray([3, -2]), max_length=20, cache_length=4)


def test_fault_2_truncated_tokens_leave_numerator_and_denominator():
    """3 finished and 9 truncated tokens, loss 1 each: 1.0 and not 3/12; with all truncated 0."""
    mask = jnp.arange(9)[None] < jnp.asarray([[3], [9]])
    method = recipes.dapo(clip_high=0.2)
    for truncated, wanted in (([False, True], 1.0), ([False, False], 1.0), ([True, True], 0.0)):
        trained = mask_truncated(mask, jnp.asarray(truncated))
        weights = objective.weights(
            method, advantages=jnp.ones(2), loss_mask=trained, group_ids=jnp.zeros(2, jnp.int32)
        )
        total = jnp.sum(jnp.where(trained, weights.policy[:, None], 0.0))
        np.testing.assert_allclose(total, wanted, rtol=1e-6)


def test_fault_37_a_masked_completion_keeps_its_place_in_the_baseline():
    """Rewards 1, 0, 0, 1 with the last truncated: advantages are from the mean of four, .5, not of three."""
    advantages, _, _ = objective.advantages(
        recipes.dapo(advantage=partial(advantage, scale=no_scale)),
        rewards=jnp.asarray([1.0, 0, 0, 1]),
        group_ids=jnp.zeros(4, jnp.int32),
    )
    np.testing.assert_allclose(advantages, [0.5, -0.5, -0.5, 0.5])
    dropped, _, _ = objective.advantages(
        recipes.dapo(advantage=partial(advantage, scale=no_scale)),
        rewards=jnp.asarray([1.0, 0, 0, 1]),
        scored=jnp.asarray([True, True, True, False]),
        group_ids=jnp.zeros(4, jnp.int32),
    )
    np.testing.assert_allclose(dropped, [2 / 3, -1 / 3, -1 / 3, 0], rtol=1e-6)
