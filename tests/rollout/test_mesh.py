"""Sampling on a mesh: the same completions as on one device, with every array where the mesh wants it."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from grpo_jax.models.config import LoraConfig
from grpo_jax.rollout import NativeEngine, Sampling, cache, decode
from grpo_jax.rollout.weights import prepared
from tests.rollout.test_engine import all_uniforms
from tests.rollout.tiny import CONFIG, PROMPTS, completions, full_forward, log_probs, model, nearest_boundary

KEY = jax.random.key(5)
SAMPLING = Sampling(max_tokens=12, group_size=4, stop_ids=(0,))


def mesh_of(data, fsdp=1, tensor=1, *, devices=None):
    devices = devices or jax.devices()[: data * fsdp * tensor]
    names = ("data", "fsdp", "tensor")
    return jax.make_mesh((data, fsdp, tensor), names, devices=devices, axis_types=(AxisType.Auto,) * 3)


def sampled(mesh, **settings):
    graphdef, params = model()
    engine = NativeEngine(graphdef, max_prompt_length=8, slots=16, mesh=mesh, **settings)
    engine.load(params)
    return engine.generate(PROMPTS * 2, sampling=SAMPLING, key=KEY)


@pytest.fixture(scope="module")
def alone():
    return sampled(None)


@pytest.fixture(scope="module")
def clear(alone):
    graphdef, params = model()
    numbers = all_uniforms(KEY, 2 * len(PROMPTS), SAMPLING)
    rows = nearest_boundary(full_forward(graphdef, params, alone), alone, numbers) > 1e-4
    assert rows.mean() > 0.8
    return rows


@pytest.mark.parametrize(
    ("shape", "settings"),
    [((8, 1, 1), {}), ((2, 2, 2), {}), ((2, 1, 2), {"positions_first": True})],
    ids=str,
)
def test_another_number_of_devices_changes_no_clear_completion(alone, clear, shape, settings):
    rollout = sampled(mesh_of(*shape), **settings)
    for row in np.flatnonzero(clear):
        assert completions(rollout)[row] == completions(alone)[row]
    graphdef, params = model()
    exists = np.arange(SAMPLING.max_tokens) < rollout.completion_lengths[:, None]
    expected = log_probs(full_forward(graphdef, params, rollout), rollout.completion_ids)
    np.testing.assert_allclose(rollout.sampler_full_log_probs[exists], expected[exists], atol=1e-5)


def test_on_devices_of_its_own(alone, clear):
    """Parameters come from the first device; nothing is left there."""
    mesh = mesh_of(2, devices=jax.devices()[6:])
    rollout = sampled(mesh)
    for row in np.flatnonzero(clear):
        assert completions(rollout)[row] == completions(alone)[row]
    _, params = model()
    moved = prepared(params, CONFIG, mesh)
    assert {d for leaf in jax.tree.leaves(moved) for d in leaf.devices()} == set(jax.devices()[6:])


def test_parameters_are_split_over_tensor_alone():
    _, params = model()
    there = prepared(params, CONFIG, mesh_of(4, 1, 2))
    kernel = there["blocks"]["gate"]["kernel"][...]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 16, 12)}
    assert all(leaf.sharding.mesh.shape["fsdp"] == 1 for leaf in jax.tree.leaves(there))


def test_no_collective_moves_a_cache():
    """What crosses devices in a decode step is as long as a token, whatever the cache has room for."""
    graphdef, params = model()
    slots, columns = 16, 640
    for positions_first in (False, True):
        mesh = mesh_of(4, 1, 2)
        with jax.set_mesh(mesh):
            state = decode.start_on_mesh(
                config=CONFIG,
                rows=8,
                prompt_tokens=16,
                slots=slots,
                columns=columns,
                max_tokens=7,
                penalised=False,
                positions_first=positions_first,
            )
            assert state.cache.value.addressable_shards[0].data.size * 8 == state.cache.value.size
            seating = cache.Seating(*(np.zeros(shape, np.int32) for shape in ((slots,), (slots,), (8, 4))))
            rules = decode.Rules({}, jnp.zeros(8, jnp.int32), None, None, 0)
            lowered = decode.decode.lower(
                graphdef, prepared(params, CONFIG, mesh), state, seating, rules, 4, 0
            )
            program = lowered.compile().as_text()
        moves = [
            line for line in program.splitlines() if re.search(r" (all-|collective-|reduce-)\S*\(", line)
        ]
        assert moves
        assert not [line for line in moves if re.search(rf"[\[,]{columns}[,\]]", line.split("(")[0])]


def test_casting_once_changes_no_number():
    """bfloat16 blocks on float32 parameters, adapters included; embedding and norms stay as they are."""
    config = replace(CONFIG, dtype="bfloat16", lora=LoraConfig(rank=2, targets=("query", "down")))
    graphdef, params = model(config)
    cast = prepared(params, config, None)
    dtypes = {".".join(map(str, path)): leaf.dtype for path, leaf in nnx.to_flat_state(cast)}
    assert dtypes["embedding"] == dtypes["blocks.mlp_norm"] == jnp.float32
    assert dtypes["blocks.query.kernel"] == dtypes["blocks.query.adapter.a"] == jnp.bfloat16
    engine = NativeEngine(graphdef, max_prompt_length=8, slots=16)
    engine.load(params)
    once = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    engine._params = params  # as they were: cast at every step
    jax.tree.map(np.testing.assert_array_equal, engine.generate(PROMPTS, sampling=SAMPLING, key=KEY), once)
    _, plain = model()
    assert prepared(plain, CONFIG, None) is plain
