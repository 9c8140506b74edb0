"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): only groups whose rewards are not all alike train.

Prompts are drawn until there are enough such groups, or the rounds are used up. A batch keeps one shape: places
that no mixed group fills hold groups that count nowhere, as if they had never been sampled.
"""

from typing import NamedTuple

import numpy as np


class Selection(NamedTuple):
    """Which of the sampled rows make the batch."""

    rows: np.ndarray
    """[N] indices, group after group."""
    group_ids: np.ndarray
    """[N] the group's place in the batch."""
    counted: np.ndarray
    """[N] False on rows that only fill the batch."""


def mixed_groups(rewards: np.ndarray, scored: np.ndarray, group_ids: np.ndarray) -> np.ndarray:
    """[groups] Whether a group's scored rewards are not all alike, so that it teaches anything."""
    high = np.full(int(group_ids.max()) + 1, -np.inf)
    low = -high
    np.maximum.at(high, group_ids[scored], rewards[scored])
    np.minimum.at(low, group_ids[scored], rewards[scored])
    return high > low


def everything(group_ids: np.ndarray) -> Selection:
    """All that was sampled, as it was sampled."""
    return Selection(np.arange(len(group_ids)), group_ids, np.ones(len(group_ids), bool))


def select(mixed: np.ndarray, group_ids: np.ndarray, *, groups: int) -> Selection:
    """The first `groups` mixed groups in the order they were drawn, then others to fill the batch.

    Args:
        mixed: [sampled groups] which of them are mixed.
        group_ids: [sampled rows].
        groups: groups in the batch; at least as many must have been sampled.
    """
    order = np.concatenate([np.flatnonzero(mixed), np.flatnonzero(~mixed)])[:groups]
    rows = np.concatenate([np.flatnonzero(group_ids == group) for group in order])
    places = np.concatenate([np.full(np.sum(group_ids == group), i) for i, group in enumerate(order)])
    return Selection(rows, places.astype(np.int32), mixed[group_ids[rows]])
