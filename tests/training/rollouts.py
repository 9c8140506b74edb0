"""A rollout without a sampler, for tests of what comes after it."""

import numpy as np

from grpo_jax.config import Config
from grpo_jax.training import batches
from grpo_jax.types import Batch, Rollout


def rollout_of(config: Config) -> Rollout:
    """Completions of one token in every group of a config's step."""
    options = config.rollout
    P, T = options.max_prompt_length, options.max_completion_length
    N = options.batch_size * options.group_size
    ones, numbers = np.ones(N, np.int32), np.zeros((N, T), np.float32)
    return Rollout(
        prompt_ids=np.zeros((N, P), np.int32),
        prompt_lengths=ones,
        completion_ids=np.zeros((N, T), np.int32),
        completion_lengths=ones,
        stop_reason=0 * ones,
        group_ids=np.repeat(np.arange(options.batch_size, dtype=np.int32), options.group_size),
        sampler_log_probs=numbers,
        sampler_full_log_probs=numbers,
    )


def batch_of(rollout: Rollout) -> Batch:
    """Its batch, with advantages of +1 and -1 by turns."""
    N = len(rollout.group_ids)
    return batches.policy_batch(
        rollout, advantages=1 - 2.0 * (np.arange(N) % 2), scored=np.ones(N, bool), mask_truncated=False
    )
