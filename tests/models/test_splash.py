"""The kernel against einsum attention, interpreted: same outputs and gradients for ragged prompts, also on a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import attention, splash
from grpo_jax.training import sharding

B, P, G, T, H, K, h = 2, 40, 3, 33, 4, 2, 128
LENGTHS = jnp.array([40, 23])


def totals(attend):
    """The real tokens' outputs, and gradients of a scalar of them: padding in the prompt means nothing."""
    column = np.arange(P + G * T)
    real = ((column < np.asarray(LENGTHS)[:, None]) | (column >= P))[..., None, None]
    weights = jax.random.normal(jax.random.key(1), (B, P + G * T, H, h)) * real

    def total(query, key, value):
        out = real * attend(query, key, value, 0, None, None)[0]
        return (weights * out).sum(), out

    return jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))


@pytest.fixture(scope="module")
def inputs():
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(k, (B, P + G * T, heads, h)) for k, heads in zip(keys, (H, K, K), strict=True)]


@pytest.fixture(scope="module")
def expected(inputs):
    return totals(attention.group(LENGTHS, P, G))(*inputs)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 2)])
def test_the_kernel_is_einsum_attention(inputs, expected, shape):
    mesh = sharding.make_mesh(*shape)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        inputs = jax.device_put(inputs, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
        found = totals(splash.group(LENGTHS, P, G, T, interpret=True))(*inputs)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(one - other) <= 4e-6 * np.linalg.norm(other)


def test_a_completion_sees_its_prompt_and_its_own_past():
    seen = splash.sees(np.arange(7)[:, None], np.arange(7)[None, :], P=3, T=2)
    np.testing.assert_array_equal(seen[4], [1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_array_equal(seen[5], [1, 1, 1, 0, 0, 1, 0])
