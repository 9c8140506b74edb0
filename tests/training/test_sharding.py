"""Buffers and devices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from grpo_jax.models.decoder import Decoder
from grpo_jax.training import sharding
from tests.tiny import MODEL


@pytest.mark.parametrize("devices", [1, 8])
def test_two_leaves_that_are_one_array_may_both_be_donated(devices):
    """Donating one buffer twice crashes the process, so a replicated tree shares none."""
    one = jnp.arange(4.0)
    tree = sharding.replicate({"a": one, "b": one}, sharding.make_mesh(devices))
    for shard_a, shard_b in zip(tree["a"].addressable_shards, tree["b"].addressable_shards, strict=True):
        assert shard_a.data.unsafe_buffer_pointer() != shard_b.data.unsafe_buffer_pointer()
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)(tree)
    assert (doubled["a"] == 2 * one).all() and (one == jnp.arange(4.0)).all()


def test_every_projection_and_its_moments_are_split():
    """By name: one of them is called value, as is what nnx wraps every leaf in."""
    config = replace(MODEL, vocab_size=16)
    _, params = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    moments = jax.eval_shape(optax.adam(1.0).init, params)
    rule = sharding.rule_of(sharding.make_mesh(1, 4), config)
    where = sharding.shardings((params, moments), rule)
    leaves = jax.tree_util.tree_leaves_with_path(where)
    kernels = {sharding.dotted(path): s for path, s in leaves if "kernel" in jax.tree_util.keystr(path)}
    assert len(kernels) == 3 * 7
    assert [name for name, s in kernels.items() if "fsdp" not in str(s.spec)] == []


def test_small_gradients_are_not_lost_in_a_bfloat16_sum():
    small = {"kernel": jnp.full((2,), 1e-3, jnp.bfloat16)}
    total = sharding.accumulators(small)
    for _ in range(4096):
        total = jax.tree.map(jnp.add, total, small)
    np.testing.assert_allclose(total["kernel"], 4096 * float(small["kernel"][0]), rtol=1e-3)
    assert sharding.accumulators({"x": jnp.zeros(2)})["x"].dtype == jnp.float32
