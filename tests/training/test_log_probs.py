"""Chunked log-probabilities against the logits tensor, and against other paddings of the same text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import attention
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training.batches import supervised_batch
from grpo_jax.training.log_probs import chunked_log_probs, make_log_probs

MODEL = ModelConfig(
    vocab_size=23, num_layers=2, width=16, mlp_width=32, num_heads=2, num_kv_heads=1, head_dim=8
)
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10]]
COMPLETIONS = [[11, 2], [12, 13, 14, 2], [2]]


@pytest.fixture(scope="module")
def policy():
    return nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_chunks_agree_with_whole_logits(chunk):
    hidden = jax.random.normal(jax.random.key(0), (3, 4, 8))
    head = jax.random.normal(jax.random.key(1), (8, 11))
    targets = jnp.arange(12).reshape(3, 4) % 11

    def chunked(head):
        return chunked_log_probs(lambda h: h @ head, hidden, targets, temperature=0.7, chunk=chunk)

    def whole(head):
        log_p = jax.nn.log_softmax(hidden @ head / 0.7)
        chosen = jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
        return chosen, -(jnp.exp(log_p) * log_p).sum(-1)

    for ours, plain in zip(chunked(head), whole(head), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)
    gradients = [jax.grad(lambda head, f=f: sum(x.sum() for x in f(head)))(head) for f in (chunked, whole)]
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-5)


def test_log_probs_are_those_of_the_unpadded_sequence(policy):
    graphdef, params = policy
    batch = supervised_batch(PROMPTS, COMPLETIONS, prompt_size=6, size=5)
    log_probs, _ = make_log_probs(graphdef, temperature=1.0, head_chunk=7)(params, batch)
    decoder = nnx.merge(graphdef, params)
    for row, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        alone = supervised_batch([prompt], [completion], prompt_size=len(prompt), size=len(completion))
        ids = jnp.array([prompt + completion])
        attend = attention.plain(alone.prompt_lengths, alone.completion_lengths, len(prompt), len(completion))
        hidden, _ = decoder(ids, jnp.arange(ids.shape[1])[None], attend)
        table = jax.nn.log_softmax(decoder.logits(hidden))[0]
        expected = [table[len(prompt) + t - 1, token] for t, token in enumerate(completion)]
        np.testing.assert_allclose(log_probs[row, : len(completion)], expected, atol=1e-5)


def test_temperature_divides_logits_not_log_probs():
    """Logits (2, 1, 0, −1) at temperature 0.6 give −0.208 for the first token."""
    logits = jnp.array([[2.0, 1.0, 0.0, -1.0]])
    log_prob, _ = chunked_log_probs(
        lambda h: h, logits[None], jnp.zeros((1, 1), jnp.int32), temperature=0.6, chunk=1
    )
    np.testing.assert_allclose(log_prob, [[-0.208]], atol=5e-4)


def test_no_logits_tensor_in_the_compiled_gradient(policy):
    """Peak temporaries stay below one [N, T, V] float32 array."""
    wide = ModelConfig(**{**vars(MODEL), "vocab_size": 20_000})
    graphdef, params = nnx.split(Decoder(wide, rngs=nnx.Rngs(0)))
    n, size = 8, 64
    batch = supervised_batch([[1]] * n, [[2] * size] * n, prompt_size=1, size=size)
    log_probs = make_log_probs(graphdef, temperature=1.0, head_chunk=16)
    gradient = jax.jit(jax.grad(lambda p: log_probs(p, batch)[0].sum()))
    memory = gradient.lower(params).compile().memory_analysis()
    assert memory.temp_size_in_bytes < n * size * 20_000 * 4
