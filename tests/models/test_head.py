"""The head in blocks against the whole matrix of logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.models import head as heads
from grpo_jax.models.head import Head, log_prob_and_entropy


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of about five columns."""
    monkeypatch.setattr(heads, "NARROWEST_BLOCK", 5)
    monkeypatch.setattr(heads, "BLOCK_BYTES", 1)


def case(vocab, axis, *, tokens=(3, 4), width=8, seed=0):
    random = np.random.default_rng(seed)
    shape = (vocab, width) if axis == 0 else (width, vocab)
    hidden = jnp.asarray(random.normal(size=(*tokens, width)), jnp.float32)
    weight = jnp.asarray(3 * random.normal(size=shape), jnp.float32)
    return weight, hidden, jnp.asarray(random.integers(0, vocab, tokens))


def whole(weight, hidden, targets, *, axis, temperature):
    logits = hidden.astype(jnp.float32) @ (weight.T if axis == 0 else weight).astype(jnp.float32)
    log_p = jax.nn.log_softmax(logits / temperature)
    chosen = jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0]
    return chosen, -(jnp.exp(log_p) * log_p).sum(-1)


@pytest.mark.parametrize("keep_logits", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("vocab", [3, 5, 20, 23, 36])
def test_blocks_agree_with_the_whole(vocab, axis, keep_logits):
    """Values and both gradients, where blocks fit evenly and where the last reaches back into another."""
    weight, hidden, targets = case(vocab, axis)

    def blocks(weight, hidden):
        return log_prob_and_entropy(
            Head(weight, axis), hidden, targets, temperature=0.7, keep_logits=keep_logits
        )

    def plain(weight, hidden):
        return whole(weight, hidden, targets, axis=axis, temperature=0.7)

    pulls = []
    for function in (blocks, plain):
        values, pull = jax.vjp(function, weight, hidden)
        pulls.append((values, pull((jnp.cos(values[0]), jnp.sin(values[1])))))
    for ours, theirs in zip(*map(jax.tree.leaves, pulls), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@given(
    scale=st.floats(0.0, 200.0),
    shift=st.floats(-500.0, 500.0),
    vocab=st.integers(1, 31),
    seed=st.integers(0, 9999),
)
@settings(max_examples=40, deadline=None)
def test_any_logits(scale, shift, vocab, seed):
    """Log-probs and entropies are finite and right for logits of any size and offset, the largest in any block."""
    random = np.random.default_rng(seed)
    logits = jnp.asarray(scale * random.normal(size=(4, vocab)) + shift, jnp.float32)
    targets = jnp.asarray(random.integers(0, vocab, 4))
    ours = log_prob_and_entropy(Head(jnp.eye(vocab), 0), logits, targets, temperature=1.0, keep_logits=False)
    log_p = jax.nn.log_softmax(logits)
    np.testing.assert_allclose(ours[0], log_p[jnp.arange(4), targets], rtol=1e-5, atol=2e-4)
    np.testing.assert_allclose(ours[1], -(jnp.exp(log_p) * log_p).sum(-1), rtol=1e-4, atol=2e-4)
    assert (ours[0] <= 1e-6).all()
    assert (ours[1] >= -1e-6).all()


def test_temperature_divides_logits_not_log_probs():
    """Logits (2, 1, 0, −1) at temperature 0.6 give −0.208 for the first token."""
    log_prob, _ = log_prob_and_entropy(
        Head(jnp.eye(4), 0),
        jnp.array([[2.0, 1.0, 0.0, -1.0]]),
        jnp.zeros(1, jnp.int32),
        temperature=0.6,
        keep_logits=True,
    )
    np.testing.assert_allclose(log_prob, [-0.208], atol=5e-4)


def test_gradients_come_in_the_dtypes_of_what_they_are_of():
    """A bfloat16 matrix is worked with in float32, and its gradient rounded once, at the end."""
    weight, hidden, targets = case(23, 0)
    narrow = weight.astype(jnp.bfloat16), hidden.astype(jnp.bfloat16)

    def total(weight, hidden):
        values = log_prob_and_entropy(Head(weight, 0), hidden, targets, temperature=1.0, keep_logits=False)
        return values[0].sum()

    found = jax.grad(total, (0, 1))(*narrow)
    wide = jax.grad(total, (0, 1))(*(x.astype(jnp.float32) for x in narrow))
    for ours, expected in zip(found, wide, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_array_equal(ours, expected.astype(jnp.bfloat16))


def test_only_a_block_of_logits_is_ever_there(monkeypatch):
    """Without kept logits the gradient's temporaries are smaller than a fourth of the logits; with them, larger."""
    monkeypatch.setattr(heads, "NARROWEST_BLOCK", 256)
    weight, hidden, targets = case(8192, 0, tokens=(16, 32))

    def needed(keep_logits):
        def total(weight, hidden):
            values = log_prob_and_entropy(
                Head(weight, 0), hidden, targets, temperature=1.0, keep_logits=keep_logits
            )
            return values[0].sum()

        compiled = jax.jit(jax.grad(total, (0, 1))).lower(weight, hidden).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = 16 * 32 * 8192 * 4
    assert needed(False) < logits / 4 < logits < needed(True)


@pytest.mark.parametrize("tokens", [(1,), (heads.FEW_ROWS,), (heads.FEW_ROWS + 1,), (3, 4)])
@pytest.mark.parametrize("axis", [0, 1])
def test_logits_are_the_product_however_few_rows_there_are(axis, tokens):
    """A few rows are multiplied from the other side: the same numbers, in the same places."""
    weight, hidden, _ = case(20, axis, tokens=tokens)
    logits = jax.jit(lambda weight, hidden: Head(weight, axis).logits(hidden))(weight, hidden)
    matrix = np.asarray(weight).T if axis == 0 else np.asarray(weight)
    np.testing.assert_allclose(
        logits, np.einsum("...d,dv->...v", np.asarray(hidden), matrix), rtol=1e-5, atol=1e-5
    )
