"""What is planned is what runs: the same programs, given arguments of the same shapes in the same places."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.config import LossConfig, MeshConfig, WarmStartConfig
from grpo_jax.planning.programs import abstract_mesh, bytes_per_device, shapes_of
from grpo_jax.planning.targets import target_of
from grpo_jax.rollout import buckets, shapes
from grpo_jax.rollout.engine import NativeEngine
from grpo_jax.rollout.settings import Sampling
from grpo_jax.training import batches, optimize, setup
from grpo_jax.types import Rollout
from tests.rollout import tiny as tiny_sampler
from tests.tiny import tiny


class Seen(Exception):
    """Carries the arguments of a call that is not made."""


def stop(*arguments):
    raise Seen(*arguments)


def same(planned, real):
    """Structure, shapes, dtypes and places of two trees."""
    assert jax.tree.structure(planned) == jax.tree.structure(real)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(planned), jax.tree.leaves(real), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), path
        assert a.sharding.is_equivalent_to(b.sharding, b.ndim), (path, a.sharding, b.sharding)


def rollout_of(config) -> Rollout:
    """Completions of every group, all of one token."""
    options = config.rollout
    N, P, T = (
        options.batch_size * options.group_size,
        options.max_prompt_length,
        options.max_completion_length,
    )
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


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("mesh", [MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(data=1)])
def test_programs_get_what_was_planned(tmp_path, mesh, kl_coef):
    config = tiny(
        tmp_path / "run", mesh=mesh, loss=LossConfig(kl_coef=kl_coef), warm_start=WarmStartConfig(steps=0)
    )
    run = setup.prepare(config)
    planned = shapes_of(config, mesh=run.mesh)
    state = setup.initial_state(run)
    same(planned.state, state)

    rollout = rollout_of(config)
    N = len(rollout.group_ids)
    batch = batches.policy_batch(
        rollout, advantages=np.zeros(N), scored=np.ones(N, bool), mask_truncated=False
    )
    with pytest.raises(Seen) as seen:
        optimize.optimize(replace(run, log_prob_pass=stop), state, batch, rollout)
    params, whole = seen.value.args
    same(planned.programs["log_probs"].arguments["parameters"], params)
    same(planned.programs["log_probs"].arguments["batch"], whole)

    run = replace(run, log_prob_pass=lambda params, batch: batch.sampler_log_probs, update=stop)
    with pytest.raises(Seen) as seen:
        optimize.optimize(run, state, batch, rollout)
    same(planned.programs["update"].arguments["batch"], seen.value.args[1])


def test_the_largest_decode_program_is_the_one_planned():
    """The engine notes the sizes of every program it needs; the planned one is its last."""
    config = replace(tiny_sampler.CONFIG, max_position=128)
    structure, params = tiny_sampler.model(config)
    engine = NativeEngine(structure, max_prompt_length=20, slots=16)
    engine.load(params)
    sampling = Sampling(max_tokens=70, group_size=4)
    engine.generate([[1] * 20, [2] * 3, [3], [4]], sampling=sampling, key=jax.random.key(0))
    state, seating, *_ = shapes.decode_arguments(
        config, sizes=buckets.Sizes(20, 16, 64, False), sampling=sampling, prompts=4
    )
    columns = state.cache.value.shape[3]
    text = (
        f"slots {state.cache.value.shape[1]}, columns {columns}, rows {state.cache.prompt_value.shape[1]}, "
        f"lanes {seating.slot.shape[1]}, prompt_tokens {state.cache.prompt_value.shape[3]}, max_tokens 70"
    )
    assert ("decode", text) in engine.programs
    assert columns == max(int(t.split("columns ")[1].split(",")[0]) for name, t in engine.programs)


def test_shares_on_a_described_mesh_are_those_of_a_real_one(tmp_path):
    """Closed form needs no devices: an abstract mesh gives the same bytes, whose sum the arrays confirm."""
    config = tiny(
        tmp_path / "run", mesh=MeshConfig(data=2, fsdp=2, tensor=2), warm_start=WarmStartConfig(steps=0)
    )
    described = shapes_of(config, mesh=abstract_mesh(config, target_of("v5p:2x2x2")))
    run = setup.prepare(config)
    state = setup.initial_state(run)
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves((state.params, state.optimizer, state.ref_params))
        for shard in leaf.addressable_shards
        if shard.device == jax.devices()[0]
    )
    abstract = described.state
    assert bytes_per_device((abstract.params, abstract.optimizer, abstract.ref_params)) == held
