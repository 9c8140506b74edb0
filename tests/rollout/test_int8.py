"""Sampling in int8: near the model, on any mesh, with log-probabilities of what was drawn from."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.models.config import LoraConfig
from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.rollout.weights import prepared
from tests.rollout.test_mesh import mesh_of
from tests.rollout.tiny import CONFIG, PROMPTS, full_forward, log_probs, model

pytest.importorskip("qwix")
SAMPLING = Sampling(max_tokens=8, group_size=4)
KEY = jax.random.key(2)


def sampled(config=CONFIG, mesh=None):
    graphdef, params = model(config)
    engine = NativeEngine(graphdef, max_prompt_length=8, slots=8, mesh=mesh, quantize="int8")
    engine.load(params)
    return graphdef, params, engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=2.0)], ids=["whole", "LoRA"])
def test_log_probs_are_those_of_the_rounded_model_and_near_the_models(lora):
    config = replace(CONFIG, lora=lora)
    graphdef, params, rollout = sampled(config)
    rounded = prepared(params, config, None, quantize="int8")
    own = log_probs(full_forward(graphdef, rounded, rollout), rollout.completion_ids)
    np.testing.assert_allclose(rollout.sampler_full_log_probs, own, atol=1e-5)
    exact = log_probs(full_forward(graphdef, params, rollout), rollout.completion_ids)
    gap = np.abs(rollout.sampler_full_log_probs - exact)
    print(f"int8: gap to the model {gap.mean():.2g} mean, {gap.max():.2g} largest")
    assert 1e-4 < gap.mean() < 0.05


def test_matrices_take_a_quarter_of_the_bytes_and_errors_are_half_a_step():
    _, params = model()
    rounded = prepared(params, CONFIG, None, quantize="int8")
    kernel = rounded["blocks"]["gate"]["kernel"][...]
    assert kernel.qvalue.dtype == np.int8 and kernel.scale.shape == (2, 1, 24)
    exact = params["blocks"]["gate"]["kernel"][...]
    error = np.abs(np.asarray(kernel.qvalue) * np.asarray(kernel.scale) - np.asarray(exact))
    assert (error <= 0.501 * np.asarray(kernel.scale)).all()
    assert rounded["embedding"][...] is params["embedding"][...] or rounded["embedding"].dtype == np.float32


def test_a_mesh_splits_scales_with_their_columns():
    _, _, alone = sampled()
    _, _, split = sampled(mesh=mesh_of(2, 1, 2))
    same = (alone.completion_ids == split.completion_ids).all(axis=1)
    assert same.mean() > 0.8  # all but those whose draw lay at a boundary
    np.testing.assert_allclose(
        split.sampler_full_log_probs[same], alone.sampler_full_log_probs[same], atol=1e-5
    )
