"""Attention over parts: equal to one softmax written with loops, and never NaN."""

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.models.attention import attention, cudnn, einsum


def by_hand(query, key, value, mask):
    """Loops in float64. query [S, H, h], key and value [L, K, h], mask [S, L]."""
    S, H, h = query.shape
    out = np.zeros((S, H, h))
    for s in range(S):
        for n in range(H):
            k = n // (H // key.shape[1])
            seen = np.flatnonzero(mask[s])
            if len(seen):
                scores = key[seen, k] @ query[s, n] / np.sqrt(h)
                weights = np.exp(scores - scores.max())
                out[s, n] = (weights / weights.sum()) @ value[seen, k]
    return out


def draws(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def test_one_part_is_softmax_attention():
    query, key, value = draws((5, 6, 4), (7, 3, 4), (7, 3, 4))
    mask = np.random.default_rng(1).random((5, 7)) > 0.4
    mask[2] = False
    out = attention(jnp.float32(query), [(jnp.float32(key), jnp.float32(value), jnp.asarray(mask))])
    np.testing.assert_allclose(out, by_hand(query, key, value, mask), atol=1e-6)


def test_a_shared_prompt_and_own_keys_are_one_softmax():
    """[B, G, S] queries against [B, 1, P] prompt keys and [B, G, T] keys of their own."""
    B, G, S, P, T = 2, 3, 4, 5, 4
    query, pk, pv, ck, cv = draws(
        (B, G, S, 4, 6), (B, 1, P, 2, 6), (B, 1, P, 2, 6), (B, G, T, 2, 6), (B, G, T, 2, 6)
    )
    prompt_mask = np.arange(P)[None, None, None] < np.array([5, 3])[:, None, None, None]
    causal = np.tril(np.ones((S, T), bool))[None, None]
    parts = [
        (jnp.float32(pk), jnp.float32(pv), jnp.asarray(prompt_mask)),
        (jnp.float32(ck), jnp.float32(cv), jnp.asarray(causal)),
    ]
    out = attention(jnp.float32(query), parts)
    for b in range(B):
        for g in range(G):
            mask = np.concatenate([np.broadcast_to(prompt_mask[b, 0], (S, P)), causal[0, 0]], axis=1)
            expected = by_hand(
                query[b, g], np.concatenate([pk[b, 0], ck[b, g]]), np.concatenate([pv[b, 0], cv[b, g]]), mask
            )
            np.testing.assert_allclose(out[b, g], expected, atol=1e-6)


def test_a_query_that_sees_nothing_has_zero_output_and_gradient():
    query, key, value = (jnp.float32(x) for x in draws((3, 2, 4), (3, 2, 4), (3, 2, 4)))
    mask = jnp.asarray([[True, False, False], [False, False, False], [True, True, True]])

    def total(query, key, value):
        return (attention(query, [(key, value, mask)]) ** 2).sum()

    assert (attention(query, [(key, value, mask)])[1] == 0).all()
    gradients = jax.grad(total, argnums=(0, 1, 2))(query, key, value)
    assert all(np.isfinite(g).all() for g in gradients)
    assert (gradients[0][1] == 0).all()


def test_the_fused_call_gets_the_same_mask_heads_and_scale():
    """cuDNN's wrapper with XLA's implementation in its place, which any device has."""
    query, key, value = (jnp.float32(x) for x in draws((2, 5, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8)))
    lengths = np.array([5, 3])[:, None, None]
    seen = (np.arange(5)[None, :, None] >= np.arange(5)) & (np.arange(5) < lengths) | np.eye(5, dtype=bool)
    fused = cudnn(query, key, value, jnp.asarray(seen), implementation="xla")
    np.testing.assert_allclose(fused, einsum(query, key, value, jnp.asarray(seen)), atol=1e-6)
