"""A run and a pretrained model open as the same thing: what to sample with."""

import jax
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import lora
from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.training import loop, setup
from grpo_jax.training.opening import Opened, open_model
from tests.training.pretrained import LORA, experiment, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module")
def trained(base, tmp_path_factory):
    """A LoRA run of two steps: its folder and what it ended with."""
    run = setup.prepare(experiment(tmp_path_factory.mktemp("run") / "run", base, **LORA))
    return run.folder, loop.train(run)


def completions(opened: Opened) -> np.ndarray:
    engine = NativeEngine(opened.graphdef, max_prompt_length=8)
    engine.load(opened.params)
    prompt = opened.tokenizer.encode_prompt("3+4=")
    sampling = Sampling(max_tokens=6, group_size=4)
    return engine.generate([prompt], sampling=sampling, key=jax.random.key(0)).sampler_log_probs


def test_a_run_opens_as_what_it_trained(trained):
    folder, state = trained
    opened = open_model(folder)
    assert opened.step == 2 and opened.config.train.steps == 2
    expected = lora.join(state.params, state.frozen)
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(opened.params), nnx.to_pure_dict(expected))
    first, second = completions(open_model(folder, step=1)), completions(opened)
    assert first.shape == second.shape and (first != second).any()


def test_a_model_opens_with_its_own_tokenizer(base):
    opened = open_model(base)
    assert opened.config is None and opened.step is None
    assert opened.architecture.vocab_size >= opened.tokenizer.vocab_size
    assert (completions(opened) < 0).all()


def test_what_cannot_be_opened_is_named(base, trained, tmp_path):
    with pytest.raises(ValueError, match=r"step: got 7, but .* keeps checkpoints of steps \[1, 2\]"):
        open_model(trained[0], step=7)
    with pytest.raises(ValueError, match="is no run"):
        open_model(base, step=1)
    with pytest.raises(ValueError, match="nothing-here"):
        open_model(tmp_path / "nothing-here")
