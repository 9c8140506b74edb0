"""`grpo-jax export`: what a run saved is what Transformers, PEFT and `load_decoder` get."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from grpo_jax.cli import main
from grpo_jax.models import attention, loading, lora
from grpo_jax.models.tokenizers import load_tokenizer
from grpo_jax.training import loop, setup
from grpo_jax.training.records import read_rows
from tests.training.pretrained import LORA, experiment, write_base
from tests.training.test_loop import assert_equal

IDS = np.random.default_rng(0).integers(3, 300, (3, 20))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module", params=["whole", "lora"])
def trained(request, base, tmp_path_factory):
    """Which model, its folder, and the decoder at the end of training."""
    config = experiment(
        tmp_path_factory.mktemp("run") / "run", base, **(LORA if request.param == "lora" else {})
    )
    run = setup.prepare(replace(config, rollout=replace(config.rollout, temperature=0.9)))
    state = loop.train(run)
    return request.param, run.folder, nnx.merge(run.policy.graphdef, lora.join(state.params, state.frozen))


def log_probs(decoder) -> np.ndarray:
    lengths = jnp.full(len(IDS), IDS.shape[1])
    attend = attention.plain(lengths, jnp.zeros_like(lengths), IDS.shape[1], 0)
    hidden, _ = decoder(jnp.asarray(IDS), jnp.broadcast_to(jnp.arange(IDS.shape[1]), IDS.shape), attend)
    logits = np.asarray(decoder.logits(hidden))
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def run_export(*arguments):
    main(["export", *map(str, arguments)])


def complaint(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as exit_:
        run_export(*arguments)
    assert exit_.value.code == 2
    text = capsys.readouterr().err.strip()
    assert text.startswith("grpo-jax: error: ") and len(text.splitlines()) == 1
    return text


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    to = tmp_path_factory.mktemp("out") / "model"
    run_export(trained[1], "--to", to)
    return to


def test_the_exported_policy_is_the_trained_one(base, trained, exported):
    kind, _, decoder = trained
    again = loading.load_decoder(str(exported))
    assert again.config.lora is None
    if kind == "whole":
        np.testing.assert_array_equal(log_probs(again), log_probs(decoder))
    np.testing.assert_allclose(log_probs(again), log_probs(decoder), atol=1e-5)
    assert np.abs(log_probs(again) - log_probs(loading.load_decoder(str(base)))).max() > 1e-3


def test_training_goes_on_from_an_export_as_it_would_without(trained, exported, tmp_path):
    """The same run from the files, and from the policy in memory, which never was on disk."""
    ends = {}
    for name in ("from files", "from memory"):
        run = setup.prepare(experiment(tmp_path / name, exported))
        if name == "from memory":
            _, params, _ = lora.split(lora.merge(trained[2]))
            run = replace(run, policy=run.policy._replace(initial=lambda key, params=params: (params, None)))
        ends[name] = (loop.train(run).params, read_rows(run.folder / "metrics.jsonl"))
    params, rows = ends["from files"]
    assert_equal(params, ends["from memory"][0])
    assert any(row.get("grad/norm", 0) > 0 for row in rows)
    for row, other in zip(rows, ends["from memory"][1], strict=True):
        same = {name: value for name, value in row.items() if not name.startswith(("time/", "throughput/"))}
        assert same == {name: other[name] for name in same}


def test_transformers_computes_the_same_logits(trained, exported):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    with torch.no_grad():
        theirs = torch.log_softmax(model(torch.from_numpy(IDS)).logits, -1).numpy()
    np.testing.assert_allclose(theirs, log_probs(trained[2]), atol=2e-4, rtol=0)


def test_tokenizer_generation_config_and_card_come_along(base, trained, exported):
    ours = load_tokenizer(kind="transformers", path=str(base))
    theirs = load_tokenizer(kind="transformers", path=str(exported))
    assert theirs.encode_prompt("3+4=") == ours.encode_prompt("3+4=") and theirs.stop_ids == ours.stop_ids
    generation = json.loads((exported / "generation_config.json").read_text())
    assert generation["temperature"] == 0.9
    text = (exported / "README.md").read_text()
    assert "# run, step 2" in text and "base_model: llama" in text
    assert "| step | accuracy | 95 % interval | pass@2 |" in text and "| 0 | " in text and "| 2 | " in text
    assert f"lora_rank={2 if trained[0] == 'lora' else 0}," in text


def test_an_earlier_step_is_another_policy(trained, exported, tmp_path):
    run_export(trained[1], "--to", tmp_path / "early", "--step", 1)
    early, late = (log_probs(loading.load_decoder(str(path))) for path in (tmp_path / "early", exported))
    assert np.abs(early - late).max() > 1e-4
    assert "| 2 | " not in (tmp_path / "early" / "README.md").read_text()


def test_adapters_alone(capsys, base, trained, tmp_path):
    kind, folder, decoder = trained
    to = tmp_path / "adapter"
    if kind == "whole":
        assert "lora_rank" in complaint(capsys, folder, "--to", to, "--adapter")
        return
    run_export(folder, "--to", to, "--adapter")
    fields = json.loads((to / "adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(base)
    tensors = load_file(to / "adapter_model.safetensors")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"
    np.testing.assert_array_equal(tensors[name], decoder.blocks.query.adapter.b[0].T)
    assert not (to / "model.safetensors").exists() and "step 2" in (to / "README.md").read_text()


def test_mistakes_are_one_line_that_names_them(capsys, trained, tmp_path):
    _, folder, _ = trained
    assert "holds no run" in complaint(capsys, tmp_path, "--to", tmp_path / "out")
    assert "--to" in complaint(capsys, folder)
    assert "got 7" in complaint(capsys, folder, "--to", tmp_path / "out", "--step", 7)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    assert "already holds something" in complaint(capsys, folder, "--to", tmp_path / "full")
    assert "--stap" in complaint(capsys, folder, "--to", tmp_path / "out", "--stap", 1)


def test_a_run_without_checkpoints(capsys, tmp_path, base):
    run = setup.prepare(experiment(tmp_path / "run", base))
    run.checkpoints.close()
    assert "no checkpoint" in complaint(capsys, run.folder, "--to", tmp_path / "out")
