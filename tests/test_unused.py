"""A setting that another one turns off is named when the run begins, and only then."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_jax import experiment
from grpo_jax.config import (
    ArithmeticData,
    Config,
    DriftFixConfig,
    FileData,
    HistoryConfig,
    LossConfig,
    PretrainedModel,
    SamplerCorrectionConfig,
    TrainConfig,
    WarmStartConfig,
)
from grpo_jax.models.config import ModelConfig
from grpo_jax.training import loop, setup
from grpo_jax.unused import BELONGINGS, unused
from tests.tiny import tiny

EXPERIMENTS = sorted((Path(__file__).resolve().parent.parent / "experiments").glob("*.py"))

# What sets the setting, its name, and what lets it act.
CASES = [
    (["--data.few_shot_answer", "A: {answer}"], "data.few_shot_answer", ["--data.few_shot", "2"]),
    (["--rollout.max_turns", "7"], "rollout.max_turns", ["--rollout.environment", "calculator"]),
    (
        ["--rollout.environment_options", "digits", "2"],
        "rollout.environment_options",
        ["--rollout.environment", "calculator"],
    ),
    (["--rollout.max_rounds", "3"], "rollout.max_rounds", ["--rollout.dynamic_sampling", "True"]),
    (
        ["--loss.surrogate", "cispo", "--loss.clip_high", "0.3"],
        "loss.clip_high",
        ["--loss.surrogate", "clip"],
    ),
    (["--loss.ratio_cap", "2"], "loss.ratio_cap", ["--loss.surrogate", "cispo"]),
    (["--loss.tau_negative", "2"], "loss.tau_negative", ["--loss.surrogate", "sapo"]),
    (["--loss.scale", "none", "--loss.ddof", "1"], "loss.ddof", ["--loss.scale", "batch_std"]),
    (["--loss.kl_coef", "0", "--loss.kl", "k3"], "loss.kl", ["--loss.kl_coef", "0.1"]),
    (
        ["--loss.history.eta", "2"],
        "loss.history.eta",
        ["--loss.history.update", "soft"],
    ),
    (
        ["--loss.sampler_correction.low", "0.8"],
        "loss.sampler_correction.low",
        ["--loss.sampler_correction.kind", "band"],
    ),
    (["--update.memory_budget_gib", "3"], "update.memory_budget_gib", ["--update.micro_batch", "auto"]),
    (
        ["--warm_start.steps", "0", "--warm_start.batch_size", "3"],
        "warm_start.batch_size",
        ["--warm_start.steps", "1"],
    ),
]


@pytest.mark.parametrize(("flags", "name", "switch"), CASES, ids=[name for _, name, _ in CASES])
def test_a_setting_without_effect_is_named_and_one_that_acts_is_not(tmp_path, flags, name, switch):
    config = experiment.override(tiny(tmp_path), flags, "test")
    named = [line for line in unused(config) if name in line.partition(":")[0].split(", ")]
    assert len(named) == 1 and switch[0].removeprefix("--") in named[0]
    acting = experiment.override(tiny(tmp_path), [*flags, *switch], "test")
    assert not any(name in line for line in unused(acting))


def test_what_other_data_and_models_have_is_named_too():
    chats = Config(data=FileData(messages_field="chat", prompt="{question}?"))
    assert unused(chats) == ["data.prompt: no effect in this run; it takes data.messages_field None"]
    adapters = Config(model=PretrainedModel(path="somewhere", lora_alpha=1.0, lora_targets=("query",)))
    assert unused(adapters) == [
        "model.lora_alpha, model.lora_targets: no effect in this run; it takes model.lora_rank"
    ]
    assert not unused(replace(adapters, model=replace(adapters.model, lora_rank=4)))


def test_every_name_is_a_setting_of_some_config():
    """A field that is renamed would otherwise never be named again."""
    data = FileData(), ArithmeticData()
    models = PretrainedModel(), ModelConfig()
    loss = LossConfig(
        history=HistoryConfig(), drift_fix=DriftFixConfig(), sampler_correction=SamplerCorrectionConfig()
    )
    configs = [Config(data=d, model=m, loss=loss) for d in data for m in models]
    for name in [name for belonging in BELONGINGS for name in belonging.names]:
        assert any(_get(config, name) is not MISSING for config in configs), name


MISSING = object()


def _get(value, name):
    for part in name.split("."):
        value = getattr(value, part, MISSING)
    return value


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_no_experiment_of_ours_sets_what_has_no_effect(path):
    assert unused(experiment.load(path)) == []


def test_a_run_says_it_before_its_first_step(tmp_path, capsys):
    base = tiny(tmp_path / "run", warm_start=WarmStartConfig(steps=0), train=TrainConfig(steps=0))
    loop.train(setup.prepare(replace(base, rollout=replace(base.rollout, max_rounds=3))))
    said = " ".join(capsys.readouterr().out.split())
    assert "rollout.max_rounds: no effect in this run; it takes rollout.dynamic_sampling True" in said
