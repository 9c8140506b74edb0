"""The reference in host memory: the same run, bit for bit, whether it is resumed or not."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax import validation
from grpo_jax.config import LossConfig, MeshConfig, UpdateConfig, WarmStartConfig
from grpo_jax.training import optimize, setup, sharding
from grpo_jax.training.checkpoint import Checkpoints
from tests.tiny import tiny
from tests.training.rollouts import batch_of, rollout_of


def kinds(tree):
    """Memories that the arrays of a tree live in."""
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


def test_an_offloaded_reference_changes_nothing(tmp_path):
    """Two rollouts' updates, the second from a checkpoint of the first."""
    config = tiny(
        tmp_path / "kept",
        mesh=MeshConfig(data=1, fsdp=2),
        update=UpdateConfig(),
        warm_start=WarmStartConfig(steps=0),
    )
    rollout = rollout_of(config)
    batch = batch_of(rollout)
    run = setup.prepare(config)
    kept = setup.initial_state(run)
    for _ in range(2):
        kept, _ = optimize.optimize(run, kept, batch, rollout)
    assert kinds(kept.ref_params) == {"device"}

    run = setup.prepare(
        replace(
            config,
            run=replace(config.run, folder=str(tmp_path / "offloaded")),
            update=UpdateConfig(offload_reference=True),
        )
    )
    state = setup.initial_state(run)
    assert kinds(state.ref_params) == {"pinned_host"} and kinds(state.params) == {"device"}
    state, _ = optimize.optimize(run, state, batch, rollout)
    run.checkpoints.save(1, state)
    run.checkpoints.close()  # waits for it to be written
    state = Checkpoints(run.folder / "checkpoints", keep=1).restore(setup.initial_state(run))
    assert kinds(state.ref_params) == {"pinned_host"} and kinds(state.params) == {"device"}
    state, _ = optimize.optimize(run, state, batch, rollout)
    for a, b in zip(
        jax.tree.leaves((kept.params, kept.ref_params)),
        jax.tree.leaves((state.params, state.ref_params)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_without_a_reference_there_is_nothing_to_offload(tmp_path):
    config = tiny(tmp_path / "run", loss=LossConfig(kl_coef=0.0))
    config = replace(config, update=replace(config.update, offload_reference=True))
    with pytest.raises(ValueError, match=r"update\.offload_reference.*no reference"):
        validation.validate(config, devices=1)


def test_a_backend_without_host_memory_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sharding, "HOST", "a memory that no backend has")
    config = tiny(tmp_path / "run")
    config = replace(config, update=replace(config.update, offload_reference=True))
    with pytest.raises(ValueError, match=r"update\.offload_reference.*host memory"):
        setup.prepare(config)
