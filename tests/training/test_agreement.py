"""Sampler and trainer disagreeing is said once in a while, with the causes this config can have."""

from dataclasses import replace

import numpy as np
import pytest

from grpo_jax.config import (
    Config,
    PretrainedModel,
    RolloutConfig,
    SamplerCorrectionConfig,
    TrainConfig,
    WarmStartConfig,
)
from grpo_jax.rollout import NativeEngine
from grpo_jax.training import loop, setup
from grpo_jax.training.agreement import QUIET_STEPS, Agreement, likely_causes, truncation
from tests.tiny import tiny
from tests.training.test_loop import measured


def config(**rollout):
    return Config(rollout=RolloutConfig(**rollout))


def test_the_warning_names_the_gap_the_limit_and_the_step_and_is_not_repeated_at_once():
    agreement = Agreement(config())
    assert agreement.warning(1, 1e-6) is None
    text = agreement.warning(2, 0.3)
    assert "step 2" in text and "0.3 per token" in text and "rollout.gap_warning is 0.02" in text
    steps = [step for step in range(3, 3 * QUIET_STEPS) if agreement.warning(step, 0.3)]
    assert steps == [2 + QUIET_STEPS, 2 + 2 * QUIET_STEPS]


def test_a_gap_that_is_no_number_warns():
    assert Agreement(config()).warning(1, float("nan"))


def test_zero_never_warns():
    assert Agreement(config(gap_warning=0.0)).warning(1, 9.0) is None


def test_causes_are_those_of_the_config():
    assert not any("top_" in c or "dtype" in c or "adapters" in c for c in likely_causes(config()))
    assert any("top_p 0.9" in c for c in likely_causes(config(top_p=0.9, allow_truncated_sampling=True)))
    assert "int8" in likely_causes(config(quantize="int8"))[0]
    model = PretrainedModel(path="somewhere", dtype="bfloat16", lora_rank=4)
    causes = likely_causes(Config(model=model))
    assert "model.dtype is bfloat16" in causes[0] and any("adapters" in c for c in causes)
    corrected = replace(Config(), loss=replace(Config().loss, sampler_correction=SamplerCorrectionConfig()))
    assert any("sampler_correction" in c for c in likely_causes(Config()))
    assert not any("sampler_correction" in c for c in likely_causes(corrected))


def test_the_gap_is_measured_where_the_samplers_log_probs_are_taken_for_the_old_ones(
    tmp_path, monkeypatch, capsys
):
    """A sampler that is off by 0.1 is seen at the first of two optimizer steps, which no update came before."""
    real = NativeEngine.generate

    def off(self, prompt_ids, **options):
        rollout = real(self, prompt_ids, **options)
        return replace(rollout, sampler_full_log_probs=rollout.sampler_full_log_probs - np.float32(0.1))

    monkeypatch.setattr(NativeEngine, "generate", off)
    base = tiny(tmp_path / "run", warm_start=WarmStartConfig(steps=0), train=TrainConfig(steps=1))
    loop.train(setup.prepare(replace(base, update=replace(base.update, old_log_probs="sampler"))))
    assert measured(tmp_path / "run")[-1]["sampler/log_prob_gap"] == pytest.approx(0.1, abs=1e-4)
    said = " ".join(capsys.readouterr().out.split())
    assert "step 1: sampler and trainer disagree by 0.1 per token" in said
    assert "update.old_log_probs is sampler" in said and "loss.sampler_correction corrects" not in said


def test_training_on_truncated_samples_says_which_correction_applies():
    cut = config(top_k=20, top_p=0.9, allow_truncated_sampling=True)
    assert truncation(config()) is None
    assert "another distribution (top_k 20, top_p 0.9) than the trainer's: a kept token is" in truncation(cut)
    penalised = config(top_p=0.9, repetition_penalty=1.2, allow_truncated_sampling=True)
    assert "(top_p 0.9, repetition_penalty 1.2)" in truncation(penalised)
    assert "drawn more or less often than the policy would" in truncation(penalised)
    assert "loss.sampler_correction (truncate, per token) corrects for that; none is set" in truncation(cut)
    for correction, words in (
        (SamplerCorrectionConfig(), "weighs each token by policy / sampler, at most 2."),
        (SamplerCorrectionConfig("band", "sequence"), "leaves out each sequence outside 0.5 to 2 of it."),
    ):
        corrected = replace(cut, loss=replace(cut.loss, sampler_correction=correction))
        assert words in truncation(corrected) and "none is set" not in truncation(corrected)
