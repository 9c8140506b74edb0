"""Log-probabilities of a batch against those of its sequences alone; what they are of is in models/test_head.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import attention, head
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training.batches import supervised_batch
from grpo_jax.training.log_probs import make_log_probs

MODEL = ModelConfig(
    vocab_size=23, num_layers=2, width=16, mlp_width=32, num_heads=2, num_kv_heads=1, head_dim=8
)
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10]]
COMPLETIONS = [[11, 2], [12, 13, 14, 2], [2]]


@pytest.fixture(scope="module")
def policy():
    return nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))


def test_log_probs_are_those_of_the_unpadded_sequence(policy):
    graphdef, params = policy
    batch = supervised_batch(PROMPTS, COMPLETIONS, prompt_size=6, size=5)
    log_probs, _ = make_log_probs(graphdef, temperature=1.0, kept_logits=7)(params, batch)
    decoder = nnx.merge(graphdef, params)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        alone = supervised_batch([prompt], [completion], prompt_size=len(prompt), size=len(completion))
        ids = jnp.array([prompt + completion])
        attend = attention.plain(alone.prompt_lengths, alone.completion_lengths, len(prompt), len(completion))
        hidden, _ = decoder(ids, jnp.arange(ids.shape[1])[None], attend)
        table = jax.nn.log_softmax(decoder.logits(hidden))[0]
        expected = [table[len(prompt) + t - 1, token] for t, token in enumerate(completion)]
        np.testing.assert_allclose(log_probs[row, : len(completion)], expected, atol=1e-5)


def test_no_logits_tensor_in_the_compiled_gradient(monkeypatch):
    """Peak temporaries stay well below one [N, T, V] float32 array."""
    monkeypatch.setattr(head, "BLOCK_BYTES", 1 << 20)
    wide = ModelConfig(**{**vars(MODEL), "vocab_size": 20_000})
    graphdef, params = nnx.split(Decoder(wide, rngs=nnx.Rngs(0)))
    n, size = 8, 64
    batch = supervised_batch([[1]] * n, [[2] * size] * n, prompt_size=1, size=size)
    log_probs = make_log_probs(graphdef, temperature=1.0, kept_logits=16)
    gradient = jax.jit(jax.grad(lambda p: log_probs(p, batch)[0].sum()))
    memory = gradient.lower(params).compile().memory_analysis()
    assert memory.temp_size_in_bytes < n * size * 20_000 * 4 / 2
