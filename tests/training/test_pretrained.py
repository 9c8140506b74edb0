"""Training that starts from a checkpoint, whole or with LoRA: what moves, what stays, and what a resumed run finds."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx

from grpo_jax.config import PretrainedModel, WarmStartConfig
from grpo_jax.models import loading, lora
from grpo_jax.training import loop, setup
from grpo_jax.training.policy import architecture_of
from grpo_jax.training.records import read_rows
from tests.training.pretrained import LORA, experiment, write_base
from tests.training.test_loop import assert_equal

MODELS = {"whole": {}, "lora": LORA}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module", params=MODELS)
def trained(request, base, tmp_path_factory):
    """Which model, its folder, and the states before and after an uninterrupted run of two rollouts."""
    run = setup.prepare(experiment(tmp_path_factory.mktemp("run") / "run", base, **MODELS[request.param]))
    before = jax.device_get(setup.initial_state(run))
    return request.param, run.folder, before, jax.device_get(loop.train(run))


def flat(state) -> dict[str, np.ndarray]:
    return {".".join(path): np.asarray(value[...]) for path, value in nnx.to_flat_state(state)}


def test_a_run_begins_at_the_checkpoint(base, trained):
    kind, _, before, _ = trained
    loaded = flat(nnx.state(loading.load_decoder(str(base))))
    begun = flat(before.params if kind == "whole" else before.frozen)
    assert loaded.keys() == begun.keys()
    for name, value in loaded.items():
        np.testing.assert_array_equal(value, begun[name], err_msg=name)


def test_what_should_move_moves_and_the_rest_is_bitwise_what_it_was(trained):
    kind, _, before, after = trained
    assert int(after.step) == 2
    moved = {name for name, value in flat(after.params).items() if np.any(value != flat(before.params)[name])}
    if kind == "whole":
        assert before.frozen is None and after.frozen is None
        assert {"embedding", "blocks.query.kernel", "final_norm"} <= moved
        return
    assert moved == {f"blocks.{target}.adapter.{half}" for target in LORA["lora_targets"] for half in "ab"}
    assert_equal(after.frozen, before.frozen)
    assert not any("adapter" in name for name in flat(after.frozen))


def test_sampler_and_update_see_one_policy(trained):
    rows = [row for row in read_rows(trained[1] / "metrics.jsonl") if row["step"]]
    assert [row["step"] for row in rows] == [1, 2]
    assert max(row["sampler/log_prob_gap"] for row in rows) <= 1e-5
    assert all(row["grad/norm"] > 0 for row in rows)
    assert rows[1]["kl/ref"] > 0  # against the checkpoint, from which the policy has moved


def test_only_what_trains_has_moments_and_is_saved(trained):
    _, folder, _, after = trained
    size = sum(leaf.size for leaf in jax.tree.leaves(after.params))
    moments = sum(leaf.size for leaf in jax.tree.leaves(after.optimizer) if leaf.ndim)
    assert moments == 2 * size
    assert sum(leaf.size for leaf in jax.tree.leaves(after.ref_params)) == size
    entries = json.loads((folder / "checkpoints/2/default/_METADATA").read_text())["tree_metadata"].values()
    fields = {entry["key_metadata"][0]["key"] for entry in entries}
    assert "params" in fields and "frozen" not in fields


def test_a_resumed_run_reloads_its_base_and_is_the_uninterrupted_one(base, trained, tmp_path):
    kind, _, _, after = trained
    config = experiment(tmp_path / "run", base, **MODELS[kind])
    loop.train(setup.prepare(replace(config, train=replace(config.train, steps=1))))
    resumed = loop.train(setup.prepare(replace(config, run=replace(config.run, resume=True))))
    assert_equal(resumed, after)


def test_adapters_train_the_same_on_eight_devices(base, trained, tmp_path):
    kind, _, _, after = trained
    config = experiment(tmp_path / "run", base, **MODELS[kind])
    config = replace(config, mesh=replace(config.mesh, data=8), update=replace(config.update, micro_batch=8))
    state = loop.train(setup.prepare(config))
    for name, value in flat(state.params).items():
        np.testing.assert_allclose(value, flat(after.params)[name], atol=2e-3, err_msg=name)
    if kind == "lora":
        assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(state.frozen))


def test_after_a_warm_start_the_reference_is_the_warmed_adapters(base, tmp_path):
    config = replace(
        experiment(tmp_path / "run", base, steps=1, **LORA), warm_start=WarmStartConfig(steps=2, batch_size=4)
    )
    run = setup.prepare(config)
    before = jax.device_get(setup.initial_state(run))
    after = jax.device_get(loop.train(run))
    assert_equal(after.frozen, before.frozen)
    b = flat(after.ref_params)["blocks.query.adapter.b"]
    assert np.any(b != 0) and np.any(b != flat(after.params)["blocks.query.adapter.b"])


def test_the_architecture_is_the_files_and_the_rest_the_configs(base):
    model = PretrainedModel(path=str(base), dtype="bfloat16", param_dtype="bfloat16", **LORA)
    config = architecture_of(model)
    assert (config.width, config.num_kv_heads, config.max_position) == (16, 1, 32)
    assert (config.dtype, config.param_dtype, config.remat) == ("bfloat16", "bfloat16", "full")
    assert (config.lora.rank, config.lora.alpha, config.lora.targets) == (2, 16.0, ("query", "out", "down"))
    assert architecture_of(replace(model, lora_rank=0)).lora is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": ""}, r"model\.path"),
        ({"path": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"path": "package:no_such_package"}, "not installed"),
        ({"lora_rank": -1}, r"model\.lora_rank"),
        ({"lora_rank": 2, "lora_targets": ()}, r"model\.lora_targets"),
    ],
)
def test_a_wrong_model_is_refused_by_name(base, tmp_path, changes, message):
    config = experiment(tmp_path / "run", base)
    with pytest.raises(ValueError, match=message):
        setup.prepare(replace(config, model=replace(config.model, **changes)))


def test_prompts_must_fit_the_checkpoints_context(base, tmp_path):
    config = experiment(tmp_path / "run", base)
    with pytest.raises(ValueError, match="max_position = 32"):
        setup.prepare(replace(config, rollout=replace(config.rollout, max_completion_length=30)))


def test_lora_on_a_model_from_scratch_trains_adapters_alone(tmp_path):
    from grpo_jax.models.config import LoraConfig
    from tests.tiny import MODEL, tiny

    config = tiny(tmp_path / "run", model=replace(MODEL, lora=LoraConfig(rank=2, targets=("up",))))
    run = setup.prepare(config)
    state = setup.initial_state(run)
    run.checkpoints.close()
    assert set(flat(state.params)) == {"blocks.up.adapter.a", "blocks.up.adapter.b"}
    assert len(flat(lora.join(state.params, state.frozen))) == len(flat(state.params)) + len(
        flat(state.frozen)
    )
