"""Sampling on a mesh: the same completions as on one device, with every array where the mesh wants it."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from grpo_jax.rollout import NativeEngine, Sampling, decode
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
    [((8, 1, 1), {}), ((2, 2, 2), {}), ((1, 1, 4), {}), ((2, 1, 2), {"positions_first": True})],
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
