"""Which groups are mixed, and which of them a batch is made of."""

import numpy as np
import pytest

from grpo_jax.training.selection import everything, mixed_groups, select

IDS = np.repeat(np.arange(5), 2)


def test_a_mixed_group_has_two_scored_rewards_that_differ():
    rewards = np.array([1, 0, 1, 1, 0, 0, 1, 0, 1, 0], np.float32)
    scored = np.array([1, 1, 1, 1, 1, 1, 1, 0, 0, 0], bool)
    assert mixed_groups(rewards, scored, IDS).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, -0.35])
def test_equal_floats_are_not_mixed(reward):
    """Fault 16: the mean of equal floats need not be that float; their extremes are."""
    for size in range(2, 17):
        rewards = np.full(size, reward, np.float32)
        assert not mixed_groups(rewards, np.ones(size, bool), np.zeros(size, int)).any()


def test_the_first_mixed_groups_make_the_batch_in_the_order_drawn():
    chosen = select(np.array([False, True, False, True, True]), IDS, groups=2)
    assert chosen.rows.tolist() == [2, 3, 6, 7]
    assert chosen.group_ids.tolist() == [0, 0, 1, 1]
    assert chosen.counted.all()


def test_what_is_missing_is_filled_with_rows_that_do_not_count():
    chosen = select(np.array([False, False, False, True, False]), IDS, groups=3)
    assert chosen.rows.tolist() == [6, 7, 0, 1, 2, 3]
    assert chosen.group_ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert chosen.counted.tolist() == [True, True, False, False, False, False]


def test_everything_is_the_rollout_as_it_is():
    chosen = everything(IDS)
    assert chosen.rows.tolist() == list(range(10)) and chosen.counted.all()
    assert chosen.group_ids is IDS
