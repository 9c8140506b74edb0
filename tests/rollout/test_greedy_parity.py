"""The engine's greedy completions are Transformers' own, on the real SmolLM2."""

import jax
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import exporting, loading
from grpo_jax.models.tokenizers import load_tokenizer
from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.types import STOPPED
from tests.models.smollm2 import gguf_path
from tests.models.test_smollm2 import PROMPTS
from tests.rollout.tiny import completions

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

NEW = 32


def test_twenty_prompts_continue_as_transformers_does(tmp_path):
    """Stops included; eight slots, so that most completions sit in a refilled one."""
    from transformers import AutoModelForCausalLM

    path = str(gguf_path())
    tokenizer, decoder = load_tokenizer(kind="transformers", path=path, chat=True), loading.load_decoder(path)
    encoded = [tokenizer.encode_prompt(prompt) for prompt in PROMPTS]

    # Through our own export: Transformers reads a GGUF file only where accelerate is installed.
    exporting.export_model(tmp_path / "model", decoder, tokenizer)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    expected = []
    for ids in encoded:
        with torch.no_grad():
            row = reference.eval().generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=int),
                do_sample=False,
                max_new_tokens=NEW,
                eos_token_id=list(tokenizer.stop_ids),
                pad_token_id=tokenizer.pad_id,
            )
        expected.append(row[0, len(ids) :].tolist())

    graphdef, params = nnx.split(decoder)
    engine = NativeEngine(graphdef, max_prompt_length=64, slots=8)
    engine.load(params)
    sampling = Sampling(temperature=0.0, max_tokens=NEW, stop_ids=tokenizer.stop_ids)
    rollout = engine.generate(encoded, sampling=sampling, key=jax.random.key(0))
    assert completions(rollout) == expected
    ends = np.array([ids[-1] in tokenizer.stop_ids for ids in expected])
    np.testing.assert_array_equal(rollout.stop_reason == STOPPED, ends)
