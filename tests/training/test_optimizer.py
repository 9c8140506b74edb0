"""The learning rate of every step by hand, and what weight decay touches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training.optimizer import (
    clip_by_global_norm,
    is_matrix,
    leaf_name,
    make_optimizer,
    make_schedule,
)

PLAIN = {"b1": 0.9, "b2": 0.95, "eps": 1e-8, "max_grad_norm": 1.0, "first_moment_dtype": "float32"}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    {
        "constant": [0.25, 0.5, 0.75, 1, 1, 1, 1, 1],
        "linear": [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25],
        "cosine": [0.25, 0.5, 0.75, 1, 1, 0.853553, 0.5, 0.146447],
    }.items(),
)
def test_the_rate_of_every_step(schedule, expected):
    rate = make_schedule(learning_rate=1.0, warmup_steps=4, schedule=schedule, total_steps=8)
    np.testing.assert_allclose([rate(step) for step in range(8)], expected, rtol=1e-5)


def test_without_warm_up_the_first_step_has_the_peak_rate():
    assert make_schedule(learning_rate=2.0, warmup_steps=0, schedule="linear", total_steps=4)(0) == 2.0


def test_weight_decay_touches_matrices_only():
    model = ModelConfig(
        vocab_size=7, num_layers=2, width=8, mlp_width=8, num_heads=2, num_kv_heads=1, head_dim=4,
        qk_norm=True, qkv_bias=True, tied_embeddings=False,
    )  # fmt: skip
    _, params = nnx.split(Decoder(model, rngs=nnx.Rngs(0)))
    marked = {
        leaf_name(path): decays for path, decays in jax.tree_util.tree_flatten_with_path(is_matrix(params))[0]
    }
    assert {name for name, decays in marked.items() if decays} == {"kernel", "embedding", "head"}
    assert {"bias", "final_norm", "attention_norm", "query_norm"} <= marked.keys()
    optimizer = make_optimizer(
        learning_rate=0.1, warmup_steps=0, schedule="constant", total_steps=1, weight_decay=0.5, **PLAIN
    )
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    for (path, update), value in zip(
        jax.tree_util.tree_flatten_with_path(updates)[0], jax.tree.leaves(params), strict=True
    ):
        expected = -0.05 * value if marked[leaf_name(path)] else np.zeros_like(value)
        np.testing.assert_allclose(update, expected, rtol=1e-6, atol=1e-9, err_msg=str(path))


@pytest.mark.parametrize("max_norm", [0.5, 5.0, 50.0, np.inf])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_clipping_is_that_of_optax(max_norm, dtype):
    """Gradients of norm 5, in two leaves; those within the bound are left as they are, zeros too."""
    gradients = {"a": jnp.array([3.0, 0.0], dtype), "b": jnp.array([[-4.0]], dtype)}
    ours, theirs = (
        clip.update(gradients, clip.init(gradients))[0]
        for clip in (clip_by_global_norm(max_norm), optax.clip_by_global_norm(max_norm))
    )
    for own, other, given in zip(*map(jax.tree.leaves, (ours, theirs, gradients)), strict=True):
        assert own.dtype == dtype
        np.testing.assert_allclose(own, other, rtol=1e-6 if dtype == jnp.float32 else 1e-2)
        if max_norm >= 5:
            np.testing.assert_array_equal(own, given)
    zeros = jax.tree.map(jnp.zeros_like, gradients)
    clip = clip_by_global_norm(max_norm)
    jax.tree.map(np.testing.assert_array_equal, clip.update(zeros, clip.init(zeros))[0], zeros)


def test_a_bfloat16_first_moment_takes_half_the_room_and_steps_almost_the_same():
    params = {"kernel": jnp.linspace(-1, 1, 64).reshape(8, 8)}
    gradient = {"kernel": jnp.sin(jnp.arange(64.0)).reshape(8, 8)}
    options = {
        "learning_rate": 0.1,
        "warmup_steps": 0,
        "schedule": "constant",
        "total_steps": 4,
        "weight_decay": 0.0,
    }
    updates = {}
    for dtype in ("float32", "bfloat16"):
        optimizer = make_optimizer(**PLAIN | options | {"first_moment_dtype": dtype})
        state = optimizer.init(params)
        for _ in range(3):
            update, state = optimizer.update(gradient, state, params)
        moments = {leaf.dtype.name for leaf in jax.tree.leaves(state) if leaf.shape == (8, 8)}
        assert moments == {dtype, "float32"}
        updates[dtype] = update["kernel"]
    np.testing.assert_allclose(updates["bfloat16"], updates["float32"], rtol=0.02)
    assert not np.array_equal(updates["bfloat16"], updates["float32"])
