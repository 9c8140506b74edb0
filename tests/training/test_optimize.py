"""Where old log-probs come from, and how often: the programs are stood in for, so that calls can be counted."""

from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.config import Config, RolloutConfig, UpdateConfig
from grpo_jax.training import hosts, optimize, sharding
from grpo_jax.types import Batch, TrainState

B, G, P, T = 4, 2, 3, 2
N = B * G
SAMPLER = np.full((N, T), -2.0, np.float32)


def batch() -> Batch:
    return Batch(
        prompt_ids=np.repeat(np.arange(B * P).reshape(B, P), G, 0).astype(np.int32),
        prompt_lengths=np.full(N, P, np.int32),
        completion_ids=np.zeros((N, T), np.int32),
        completion_lengths=np.full(N, T, np.int32),
        loss_mask=np.ones((N, T), bool),
        group_ids=np.repeat(np.arange(B), G).astype(np.int32),
        advantages=np.ones(N, np.float32),
        sampler_log_probs=SAMPLER - 1,
        sampler_full_log_probs=SAMPLER,
    )


def optimized(update: UpdateConfig):
    """Old log-probs that each optimizer step saw, the parameters of every gradient-free pass, and the gap to the sampler.

    Each step says its number for that.
    """
    seen, passes = [], []

    def step(state, part):
        seen.append(None if part.old_log_probs is None else np.asarray(part.old_log_probs))
        metrics = {
            "update/trained_tokens": 1.0,
            "update/mixed_groups": 1.0,
            "sampler/log_prob_gap": len(seen),
        }
        return replace(state, params=jnp.float32(state.params + 1)), metrics

    def log_prob_pass(params, rows):
        passes.append(float(params))
        return jnp.full((N, T), params)

    epochs, parts = update.epochs, B // (update.mini_batch or B)
    run = SimpleNamespace(
        config=Config(rollout=RolloutConfig(batch_size=B, group_size=G), update=update),
        mesh=sharding.make_mesh(1),
        micro_batches=1,
        mini_batches=parts,
        updates_per_rollout=epochs * parts,
        update=step,
        log_prob_pass=log_prob_pass,
    )
    state = TrainState.first(params=jnp.float32(7), optimizer=None, key=jnp.int32(0))
    rollout = SimpleNamespace(group_ids=np.repeat(np.arange(B), G).astype(np.int32))
    _, metrics = optimize.optimize(run, state, batch(), rollout)
    return seen, passes, metrics["sampler/log_prob_gap"]


def test_the_old_policy_is_computed_once_for_all_updates_of_a_rollout():
    seen, passes, gap = optimized(UpdateConfig(epochs=2, mini_batch=2))
    assert passes == [7.0] and len(seen) == 4 and gap == 2.5
    assert all((old == 7.0).all() for old in seen)


def test_one_update_needs_no_pass():
    assert optimized(UpdateConfig()) == ([None], [], 1)


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_samplers_own_are_taken_without_a_pass(epochs):
    """Those of the untruncated distribution, which is the trainer's."""
    seen, passes, gap = optimized(UpdateConfig(epochs=epochs, old_log_probs="sampler"))
    assert passes == [] and len(seen) == epochs
    assert gap == 1  # at later steps the policy is another than the one that sampled
    assert all((old == -2.0).all() for old in seen)


def test_hosts_meet_before_the_programs_they_run_together(monkeypatch):
    """A host that stuck while it wrote would be waited for inside a program, where nothing ends the wait."""

    def nobody_came():
        raise SystemExit("of 2 hosts, 0 did not come")

    def too_early(*_, **__):
        raise AssertionError("a program was given its batch before the hosts had met")

    monkeypatch.setattr(hosts, "meet", nobody_came)
    monkeypatch.setattr(optimize, "on_devices", too_early)
    with pytest.raises(SystemExit, match="0 did not come"):
        optimized(UpdateConfig(epochs=2))
