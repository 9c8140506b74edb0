"""Buffers and devices."""

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.training import sharding


@pytest.mark.parametrize("devices", [1, 8])
def test_two_leaves_that_are_one_array_may_both_be_donated(devices):
    """Donating one buffer twice crashes the process, so a replicated tree shares none."""
    one = jnp.arange(4.0)
    tree = sharding.replicate({"a": one, "b": one}, sharding.make_mesh(devices))
    for shard_a, shard_b in zip(tree["a"].addressable_shards, tree["b"].addressable_shards, strict=True):
        assert shard_a.data.unsafe_buffer_pointer() != shard_b.data.unsafe_buffer_pointer()
    doubled = jax.jit(lambda tree: jax.tree.map(lambda x: 2 * x, tree), donate_argnums=0)(tree)
    assert (doubled["a"] == 2 * one).all() and (one == jnp.arange(4.0)).all()
