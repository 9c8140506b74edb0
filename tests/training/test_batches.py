"""From rollouts to batches: which tokens train, and how groups are dealt to mini-batches."""

import numpy as np

from grpo_jax.training import batches, sharding
from grpo_jax.types import STOPPED, TRUNCATED, Rollout

GROUPS = np.array([0, 1, 0, 2, 1, 3, 2, 3], np.int32)
LENGTHS = np.array([3, 1, 2, 3, 0, 2, 3, 1], np.int32)


def rollout() -> Rollout:
    n, size = 8, 3
    table = np.arange(n * size, dtype=np.float32).reshape(n, size)
    return Rollout(
        prompt_ids=np.ones((n, 2), np.int32),
        prompt_lengths=np.full(n, 2, np.int32),
        completion_ids=np.zeros((n, size), np.int32),  # id 0 throughout: masks cannot come from ids
        completion_lengths=LENGTHS,
        stop_reason=np.where(LENGTHS == 3, TRUNCATED, STOPPED).astype(np.int32),
        group_ids=GROUPS,
        sampler_log_probs=table,
        sampler_full_log_probs=table,
    )


def batch(*, scored=True, mask_truncated=False):
    every = np.ones(8, bool) if scored is True else scored
    return batches.policy_batch(
        rollout(), advantages=np.arange(8.0), scored=every, mask_truncated=mask_truncated
    )


def test_masks_come_from_lengths():
    np.testing.assert_array_equal(batch().loss_mask.sum(1), LENGTHS)


def test_a_truncated_completion_loses_its_tokens_and_keeps_its_row():
    """Fault 37: masking is not dropping; the group, its size and its baseline stay as sampled."""
    masked = batch(mask_truncated=True)
    np.testing.assert_array_equal(masked.loss_mask.sum(1), [0, 1, 2, 0, 0, 2, 0, 1])
    np.testing.assert_array_equal(masked.group_ids, GROUPS)
    np.testing.assert_array_equal(masked.completion_lengths, LENGTHS)


def test_an_unscored_completion_becomes_a_padding_row():
    unscored = batch(scored=np.arange(8) != 2)
    assert unscored.group_ids[2] == -1 and not unscored.loss_mask[2].any()
    np.testing.assert_array_equal(np.delete(unscored.group_ids, 2), np.delete(GROUPS, 2))


def test_mini_batches_hold_whole_groups_renumbered_wherever_their_rows_stood():
    parts = batches.mini_batches(batch(scored=np.arange(8) != 6), rollout_groups=GROUPS, num_groups=2)
    np.testing.assert_array_equal(parts[0].group_ids, [0, 1, 0, 1])
    np.testing.assert_array_equal(parts[0].advantages, [0, 1, 2, 4])
    np.testing.assert_array_equal(parts[1].group_ids, [0, 1, -1, 1])  # the unscored row keeps its place
    np.testing.assert_array_equal(parts[1].advantages, [3, 5, 6, 7])


def test_references_are_padded_on_the_right():
    made = batches.supervised_batch([[5], [6, 7]], [[8, 9], [4]], prompt_size=3, size=2)
    np.testing.assert_array_equal(made.prompt_ids, [[5, 0, 0], [6, 7, 0]])
    np.testing.assert_array_equal(made.loss_mask, [[True, True], [True, False]])


def test_padding_rows_train_nothing_and_belong_nowhere():
    padded = sharding.pad_rows(batch(), 5)
    assert padded.group_ids.shape == (10,) and (padded.group_ids[8:] == -1).all()
    assert not padded.loss_mask[8:].any() and (padded.prompt_lengths[8:] == 1).all()
    assert sharding.pad_rows(batch(), 4).group_ids.shape == (8,)
