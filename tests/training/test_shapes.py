"""What is planned is what runs: the same programs, given arguments of the same shapes in the same places."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from grpo_jax.config import LossConfig, MeshConfig, RolloutConfig, UpdateConfig, WarmStartConfig
from grpo_jax.planning.sizes import temporaries
from grpo_jax.rollout import buckets, shapes
from grpo_jax.rollout import decode as decoding
from grpo_jax.rollout.engine import NativeEngine
from grpo_jax.rollout.settings import Sampling
from grpo_jax.training import optimize, setup
from grpo_jax.training.shapes import abstract_mesh, bytes_per_device, shapes_of
from tests.rollout import tiny as tiny_sampler
from tests.tiny import tiny
from tests.training.rollouts import batch_of, rollout_of


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


UNEVEN = {
    "rollout": RolloutConfig(batch_size=6, group_size=4, max_prompt_length=8, max_completion_length=4),
    "update": UpdateConfig(mini_batch=3, micro_batch=8, layout="group"),
}
"""Three groups for two devices and two micro-batches, which take whole groups: one of padding rows."""
GIVEN = {"update": UpdateConfig(old_log_probs="sampler")}


@pytest.mark.parametrize(
    ("mesh", "kl_coef", "sections"),
    [
        (MeshConfig(data=2, fsdp=2, tensor=2), 0.0, {}),
        (MeshConfig(data=2, fsdp=2, tensor=2), 0.1, {}),
        (MeshConfig(data=1), 0.0, {}),
        (MeshConfig(data=1), 0.1, {}),
        (MeshConfig(data=2), 0.1, UNEVEN),
        (MeshConfig(data=1), 0.1, GIVEN),
    ],
)
def test_programs_get_what_was_planned(tmp_path, mesh, kl_coef, sections):
    sections = {**sections, "loss": LossConfig(kl_coef=kl_coef), "warm_start": WarmStartConfig(steps=0)}
    config = tiny(tmp_path / "run", mesh=mesh, **sections)
    run = setup.prepare(config)
    planned = shapes_of(config, run.policy.config, mesh=run.mesh, platform="cpu")
    state = setup.initial_state(run)
    same(planned.state, state)

    rollout = rollout_of(config)
    batch = batch_of(rollout)
    with pytest.raises(Seen) as seen:
        optimize.optimize(replace(run, log_prob_pass=stop), state, batch, rollout)
    params, whole = seen.value.args
    same(planned.programs["log_probs"].arguments["parameters"], params)
    same(planned.programs["log_probs"].arguments["batch"], whole)

    run = replace(run, log_prob_pass=lambda params, batch: batch.sampler_log_probs, update=stop)
    with pytest.raises(Seen) as seen:
        optimize.optimize(run, state, batch, rollout)
    same(planned.programs["update"].arguments["batch"], seen.value.args[1])


RESHAPED = {"min_p": 0.1, "top_p": 0.9, "repetition_penalty": 1.2, "forbidden_ids": (3,)}


@pytest.mark.parametrize(("shape", "settings"), [((1, 1, 1), {}), ((2, 1, 2), {}), ((1, 1, 1), RESHAPED)])
def test_the_largest_decode_program_is_the_one_planned(shape, settings, monkeypatch):
    """The arguments of the engine's last decode program."""
    config = replace(tiny_sampler.CONFIG, max_position=128, dtype="bfloat16")
    structure, params = tiny_sampler.model(config)
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    engine = NativeEngine(structure, max_prompt_length=20, slots=16, mesh=mesh)
    seen = []

    def watched(*arguments):
        seen.append(jax.tree.map(lambda x: x, arguments[1:]))
        return decode(*arguments)

    decode = decoding.decode
    monkeypatch.setattr(decoding, "decode", watched)
    engine.load(params)
    sampling = Sampling(max_tokens=70, group_size=4, **settings)
    engine.generate([[1] * 20, [2] * 3, [3], [4]], sampling=sampling, key=jax.random.key(0))
    planned = shapes.decode_arguments(
        config,
        params,
        sizes=buckets.Sizes(20, 16, 64, False, positions_first=False, shards=shape[0]),
        sampling=sampling,
        prompts=4,
        mesh=mesh,
    )
    columns = [state.cache.columns for _, state, *_ in seen]
    real = seen[columns.index(max(columns))]
    assert jax.tree.structure((planned.params, planned.state)) == jax.tree.structure(real[:2])
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path((planned.params, planned.state)),
        jax.tree.leaves(real[:2]),
        strict=True,
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), path
        assert a.sharding.is_equivalent_to(b.sharding, b.ndim), (path, a.sharding, b.sharding)
    for a, b in zip(jax.tree.leaves(planned.rest[:2]), jax.tree.leaves(real[2:4]), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_shares_on_a_described_mesh_are_those_of_a_real_one(tmp_path):
    """Closed form needs no devices: an abstract mesh gives the same bytes, whose sum the arrays confirm."""
    config = tiny(
        tmp_path / "run", mesh=MeshConfig(data=2, fsdp=2, tensor=2), warm_start=WarmStartConfig(steps=0)
    )
    run = setup.prepare(config)
    state = setup.initial_state(run)
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves((state.params, state.optimizer, state.ref_params))
        for shard in leaf.addressable_shards
        if shard.device == jax.devices()[0]
    )
    described = shapes_of(config, run.policy.config, mesh=abstract_mesh(config, devices=8), platform="cpu")
    abstract = described.state
    assert bytes_per_device((abstract.params, abstract.optimizer, abstract.ref_params)) == held


def test_attention_is_planned_as_it_will_be_computed(tmp_path):
    """cuDNN refuses key heads that tensor does not divide: then training takes einsum, whose scores need memory."""
    config = tiny(tmp_path / "run", mesh=MeshConfig(data=1, tensor=2))
    model = replace(config.model, dtype="bfloat16", vocab_size=64)
    for kv_heads, attention in ((1, "einsum"), (2, "cudnn")):
        changed = replace(
            config,
            model=replace(model, num_kv_heads=kv_heads),
            update=replace(config.update, layout="plain"),
        )
        mesh = abstract_mesh(changed, devices=2)
        assert shapes_of(changed, changed.model, mesh=mesh, platform="cuda").attention == attention


@pytest.mark.parametrize("vocab_size, columns", [(64, 32), (63, 63)])
def test_logits_that_wait_are_counted_as_the_vocabulary_is_split(tmp_path, vocab_size, columns):
    """One that tensor does not divide stays whole, so a device has all columns of its tokens' logits."""
    config = tiny(tmp_path / "run", mesh=MeshConfig(data=1, fsdp=2, tensor=2))
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    shapes = shapes_of(config, config.model, mesh=abstract_mesh(config, devices=4), platform="cpu")
    assert shapes.kept_logits == (config.update.head_memory_mib << 20) // (4 * columns)
    waiting = {
        item.name: item.bytes for item in temporaries(config, shapes, abstract_mesh(config, devices=4))
    }
    tokens = 2 * config.rollout.max_completion_length
    a_block = 2 * columns  # and what becomes of it; here a block is all columns
    assert waiting["logits"] == 4 * tokens * (columns + a_block)
