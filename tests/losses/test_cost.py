"""What the token weights cost next to a model: nothing to speak of."""

import time

import jax
import jax.numpy as jnp
import pytest

from grpo_jax.losses import objective, recipes

N, T, WIDTH, VOCABULARY = 1024, 4096, 64, 128


def seconds(function, *arguments) -> float:
    """The best of three runs after the one that compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.slow
def test_weights_cost_less_than_one_percent_of_a_tiny_model_s_update():
    """The model is one layer of width 64 over 128 tokens; 4 million tokens in 64 micro-batches."""
    method = recipes.balanced()
    keys = jax.random.split(jax.random.key(0), 4)
    ids = jax.random.randint(keys[0], (N, T), 0, VOCABULARY)
    mask = jnp.arange(T)[None] < jax.random.randint(keys[1], (N, 1), 1, T)
    advantages = jax.random.normal(keys[2], (N,))
    group_ids = jnp.arange(N) // 8
    params = [
        jax.random.normal(keys[3], shape) * 0.1
        for shape in ((VOCABULARY, WIDTH), (WIDTH, WIDTH), (WIDTH, VOCABULARY))
    ]

    @jax.jit
    def make_weights(advantages, mask):
        return objective.weights(
            method, advantages=advantages, loss_mask=mask, group_ids=group_ids, num_groups=N // 8
        )

    @jax.jit
    def update(params, weights):
        def loss(params, ids, mask, advantages, weights):
            hidden = jnp.tanh(params[0][ids] @ params[1])
            logits = jax.nn.log_softmax(hidden @ params[2])
            log_probs = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
            return objective.loss(
                method,
                log_probs=log_probs,
                old_log_probs=jax.lax.stop_gradient(log_probs),
                loss_mask=mask,
                advantages=advantages,
                weights=weights,
            )[0]

        def step(total, rows):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *rows)), None

        rows = jax.tree.map(lambda x: x.reshape(64, -1, *x.shape[1:]), (ids, mask, advantages, weights))
        gradient, _ = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), rows)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient)

    weights_cost = seconds(make_weights, advantages, mask)
    update_cost = seconds(update, params, make_weights(advantages, mask))
    print(f"weights {weights_cost:.4f} s, update {update_cost:.2f} s")
    assert weights_cost < 0.01 * update_cost
