"""KL estimators: values, and the gradient each has as a loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.losses.kl import k1, k2, k3


def test_fault_0_k3_is_never_negative_in_float32():
    small = np.geomspace(1e-38, 90, 4000, dtype=np.float32)
    d = jnp.asarray(np.concatenate([small, -small, [0.0]]))
    assert np.all(np.asarray(k3(d)) >= 0)
    assert float(k3(jnp.float32(1e-3))) == pytest.approx(5.0016671e-7, rel=1e-3)


def test_fault_14_k3_stays_finite_and_keeps_a_gradient():
    values, gradients = jax.vmap(jax.value_and_grad(k3))(jnp.asarray([90.0, 3.0, -20.0], jnp.float32))
    assert np.all(np.isfinite(values)) and np.all(np.isfinite(gradients))
    assert gradients[0] > 0
    np.testing.assert_allclose(values[1], np.exp(3) - 4, rtol=1e-6)
    np.testing.assert_allclose(values[2], 19.0, rtol=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.floats(-15, 15))
def test_k3_gradient_is_expm1_also_in_float32(d):
    gradient = jax.grad(k3)(jnp.float32(d))
    np.testing.assert_allclose(gradient, np.expm1(np.float32(d)), rtol=1e-5, atol=1e-7)


def test_fault_0_as_a_loss_k1_has_no_gradient_k2_the_reverse_kl_s_and_k3_the_forward_kl_s():
    """Exact expectation over a vocabulary of two tokens, sampled from the policy itself."""
    reference = jnp.log(jnp.asarray([0.3, 0.7]))
    logits = jnp.asarray([0.4, -0.2])

    def expected_gradient(estimator):
        probs = jax.nn.softmax(logits)  # of the sampler: not differentiated
        return jax.grad(lambda x: jnp.sum(probs * estimator(reference - jax.nn.log_softmax(x))))(logits)

    def reverse(x):
        log_probs = jax.nn.log_softmax(x)
        return jnp.sum(jnp.exp(log_probs) * (log_probs - reference))

    def forward(x):
        return jnp.sum(jnp.exp(reference) * (reference - jax.nn.log_softmax(x)))

    np.testing.assert_allclose(expected_gradient(k1), 0, atol=1e-7)
    np.testing.assert_allclose(expected_gradient(k2), jax.grad(reverse)(logits), rtol=1e-5)
    np.testing.assert_allclose(expected_gradient(k3), jax.grad(forward)(logits), rtol=1e-5)


def test_values_by_hand():
    d = jnp.asarray([0.5, -1.0])
    np.testing.assert_allclose(k1(d), [-0.5, 1.0])
    np.testing.assert_allclose(k2(d), [0.125, 0.5])
    np.testing.assert_allclose(k3(d), [np.exp(0.5) - 1.5, np.exp(-1)], rtol=1e-6)
