"""From text and rollouts to the arrays an update reads."""

from collections.abc import Sequence

import numpy as np

from grpo_jax.types import STOPPED, Batch, Rollout, rows


def policy_batch(
    rollout: Rollout, *, advantages: np.ndarray, scored: np.ndarray, mask_truncated: bool
) -> Batch:
    """The batch of one rollout. An unscored sequence becomes a padding row: it is as if it had never been sampled.

    With `mask_truncated` a completion that hit the length limit keeps its reward's place in the baseline and loses
    its tokens.
    """
    size = rollout.completion_ids.shape[1]
    trains = np.arange(size) < rollout.completion_lengths[:, None]
    trains &= scored[:, None]
    if rollout.sampled is not None:  # an environment's answers are read, not learnt
        trains &= rollout.sampled
    if mask_truncated:
        trains &= (rollout.stop_reason == STOPPED)[:, None]
    return Batch(
        prompt_ids=rollout.prompt_ids,
        prompt_lengths=rollout.prompt_lengths,
        completion_ids=rollout.completion_ids,
        completion_lengths=rollout.completion_lengths,
        loss_mask=trains,
        group_ids=np.where(scored, rollout.group_ids, -1).astype(np.int32),
        advantages=advantages.astype(np.float32),
        sampler_log_probs=rollout.sampler_log_probs,
        sampler_full_log_probs=rollout.sampler_full_log_probs,
    )


def supervised_batch(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    prompt_size: int,
    size: int,
    learnt: Sequence[Sequence[bool]] | None = None,
) -> Batch:
    """Reference answers as completions of their prompts. `learnt` says which of their tokens train; None: all."""
    prompt_ids, prompt_lengths = pad(prompts, prompt_size)
    completion_ids, completion_lengths = pad(completions, size)
    n = len(prompts)
    nothing = np.zeros((n, size), np.float32)
    trains = np.arange(size) < completion_lengths[:, None]
    if learnt is not None:
        trains &= pad(learnt, size)[0].astype(bool)
    return Batch(
        prompt_ids=prompt_ids,
        prompt_lengths=prompt_lengths,
        completion_ids=completion_ids,
        completion_lengths=completion_lengths,
        loss_mask=trains,
        group_ids=np.arange(n, dtype=np.int32),
        advantages=np.zeros(n, np.float32),
        sampler_log_probs=nothing,
        sampler_full_log_probs=nothing,
    )


def by_group(batch: Batch, group_ids: np.ndarray, *, group_size: int) -> tuple[Batch, np.ndarray]:
    """The batch and its groups as sampled, ordered so that the rows of a group are neighbours.

    Raises:
        ValueError: a group does not have `group_size` rows, or its rows have several prompts.
    """
    order = np.argsort(group_ids, kind="stable")
    batch, group_ids = rows(batch, order), group_ids[order]
    _, sizes = np.unique(group_ids, return_counts=True)
    if (sizes != group_size).any():
        raise ValueError(
            f"group_ids: groups have {np.unique(sizes).tolist()} rows, expected {group_size} in each"
        )
    first = np.repeat(batch.prompt_ids[::group_size], group_size, axis=0)
    if (first != batch.prompt_ids).any():
        raise ValueError("prompt_ids: rows of one group differ, expected one prompt per group")
    return batch, group_ids


def mini_batches(batch: Batch, *, rollout_groups: np.ndarray, num_groups: int) -> list[Batch]:
    """The batch cut into mini-batches of `num_groups` whole groups, ids renumbered from 0.

    `rollout_groups` [N] are the groups as sampled: rows are dealt by them, so that unscored (padding) rows keep their
    place and every mini-batch has one shape.
    """
    cut = []
    for first in range(0, int(rollout_groups.max()) + 1, num_groups):
        chosen = rows(
            batch, np.flatnonzero((rollout_groups >= first) & (rollout_groups < first + num_groups))
        )
        chosen.group_ids[:] = np.where(chosen.group_ids < 0, -1, chosen.group_ids - first)
        cut.append(chosen)
    return cut


def pad(sequences: Sequence[Sequence[int]], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded ids [n, size] and lengths [n]; padding is id 0, which no mask ever reads."""
    ids = np.zeros((len(sequences), size), np.int32)
    lengths = np.array([len(s) for s in sequences], np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    return ids, lengths
