"""What the sampler says of its tokens is what the trainer computes for them, in every way sampling can go."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.config import (
    EvaluationConfig,
    LossConfig,
    SamplerCorrectionConfig,
    TrainConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.models.config import LoraConfig
from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.training import layouts, loop, setup
from grpo_jax.training.batches import policy_batch
from grpo_jax.training.log_probs import make_log_probs
from grpo_jax.training.records import read_rows
from grpo_jax.types import STOPPED
from tests.rollout.tiny import CONFIG, PROMPTS, model
from tests.tiny import tiny

SAMPLING = Sampling(max_tokens=12, group_size=4, stop_ids=(0,))  # 0 also pads: pad = eos


def sampled(config, sampling, **settings):
    """(graphdef, params, rollout) of slots that are refilled."""
    graphdef, params = model(config)
    engine = NativeEngine(graphdef, max_prompt_length=8, slots=6, chunk=4, **settings)
    engine.load(params)
    return graphdef, params, engine.generate(PROMPTS, sampling=sampling, key=jax.random.key(7))


def gap(graphdef, params, rollout, sampling, layout=layouts.plain):
    """|sampler − trainer| of the tokens that exist."""
    n = len(rollout.group_ids)
    batch = policy_batch(rollout, advantages=np.zeros(n), scored=np.ones(n, bool), mask_truncated=False)
    log_probs = make_log_probs(graphdef, temperature=sampling.temperature, kept_logits=16, layout=layout)
    trainer, _ = log_probs(params, batch)
    return np.abs(np.asarray(trainer) - rollout.sampler_full_log_probs)[batch.loss_mask]


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        (CONFIG, SAMPLING),
        (CONFIG, replace(SAMPLING, temperature=0.6)),
        (CONFIG, replace(SAMPLING, temperature=1.5)),
        (CONFIG, replace(SAMPLING, stop_ids=())),
        (CONFIG, replace(SAMPLING, top_k=5, top_p=0.8, min_p=0.01)),
        (replace(CONFIG, lora=LoraConfig(rank=2, alpha=2.0)), SAMPLING),
    ],
    ids=["pad = eos", "temperature 0.6", "temperature 1.5", "sampled pads", "top-k, top-p, min-p", "LoRA"],
)
def test_faults_26_31_and_33_sampler_and_trainer_agree_over_ragged_rows(config, sampling):
    graphdef, params, rollout = sampled(config, sampling)
    if sampling.stop_ids:
        assert len(set(rollout.completion_lengths)) > 3 and (rollout.stop_reason == STOPPED).any()
    else:
        assert (rollout.completion_ids[:, :-1] == 0).any()
    assert gap(graphdef, params, rollout, sampling).max() < 1e-5


def test_fault_30_another_shape_of_batch_is_another_rounding_and_no_more():
    """The trainer's group layout, fixed and growing caches: one number to 1e-5."""
    for settings in ({}, {"fixed_shapes": True}, {"positions_first": True}):
        graphdef, params, rollout = sampled(CONFIG, SAMPLING, **settings)
        assert gap(graphdef, params, rollout, SAMPLING, layouts.group(4)).max() < 1e-5


def test_fault_36_a_shift_by_one_token_is_seen():
    """The comparison above has teeth: log-probs of the neighbouring token are nowhere near."""
    graphdef, params, rollout = sampled(CONFIG, SAMPLING)
    shifted = replace(rollout, sampler_full_log_probs=np.roll(rollout.sampler_full_log_probs, 1, axis=1))
    assert np.median(gap(graphdef, params, shifted, SAMPLING)) > 0.1


def test_fault_32_a_completion_that_ends_in_any_stop_id_is_finished():
    """Stops {2, 5}, the stop included in the length, exactly at the limit too."""
    sampling = replace(SAMPLING, stop_ids=(2, 5), max_tokens=4)
    _, _, rollout = sampled(CONFIG, sampling)
    last = rollout.completion_ids[np.arange(20), rollout.completion_lengths - 1]
    np.testing.assert_array_equal(rollout.stop_reason == STOPPED, np.isin(last, (2, 5)))
    at_limit = rollout.completion_lengths == 4
    assert (at_limit & (rollout.stop_reason == STOPPED)).any() and (at_limit & ~np.isin(last, (2, 5))).any()


def test_a_run_that_samples_in_int8_measures_the_gap_and_corrects_for_it(tmp_path, capsys):
    pytest.importorskip("qwix")
    config = tiny(
        tmp_path / "run",
        loss=LossConfig(sampler_correction=SamplerCorrectionConfig(high=1.001)),
        warm_start=WarmStartConfig(steps=0),
        train=TrainConfig(steps=1),
        update=UpdateConfig(),
        evaluation=EvaluationConfig(every=0, problems=2, samples=1),
    )
    config = replace(config, rollout=replace(config.rollout, quantize="int8", gap_warning=1e-5))
    loop.train(setup.prepare(config))
    row = read_rows(tmp_path / "run" / "metrics.jsonl")[-1]
    assert 1e-5 < row["sampler/log_prob_gap"] < 0.02
    assert 0 < row["sampler/truncated_fraction"] < 1  # tokens whose weight would have been above 1.001
    assert "rollout.quantize is int8" in capsys.readouterr().out
