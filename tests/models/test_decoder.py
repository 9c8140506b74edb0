"""The decoder by itself: shapes and causality; padding, packing and caches change no hidden state."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import attention as attends
from grpo_jax.models.config import LoraConfig, ModelConfig, RopeScaling
from grpo_jax.models.decoder import Decoder

TINY = ModelConfig(
    vocab_size=19,
    num_layers=3,
    width=24,
    mlp_width=40,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    max_position=64,
)
SWITCHES = {
    "llama": {},
    "qwen2": {"qkv_bias": True, "tied_embeddings": False},
    "qwen3": {"qk_norm": True, "layer_windows": (0, 3, 5)},
    "biases": {"out_bias": True, "mlp_bias": True, "qkv_bias": True, "remat": "none"},
}


def build(**changes) -> Decoder:
    return Decoder(dataclasses.replace(TINY, **changes), rngs=nnx.Rngs(0))


def run(decoder: Decoder, ids, *, attend=None):
    """Logits of unpadded rows."""
    ids = jnp.asarray(ids)
    N, S = ids.shape
    lengths = jnp.full(N, S)
    attend = attend or attends.plain(lengths, jnp.zeros_like(lengths), S, 0)
    hidden, _ = decoder(ids, jnp.broadcast_to(jnp.arange(S), ids.shape), attend)
    return decoder.logits(hidden)


@pytest.fixture(params=SWITCHES, scope="module")
def decoder(request) -> Decoder:
    return build(**SWITCHES[request.param])


def test_future_tokens_change_nothing(decoder):
    ids = np.random.default_rng(0).integers(0, 19, (2, 11))
    changed = ids.copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % 19
    before, after = run(decoder, ids), run(decoder, changed)
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.abs(before[:, 7:] - after[:, 7:]).max() > 1e-3


def test_padding_of_prompt_and_completion_changes_nothing(decoder):
    """Ids under the padding are other tokens on purpose: only lengths may say what is padding."""
    rng = np.random.default_rng(1)
    P, T, prompt_lengths, completion_lengths = 6, 5, np.array([6, 3, 1]), np.array([2, 5, 4])
    ids = jnp.asarray(rng.integers(0, 19, (3, P + T)))
    attend = attends.plain(jnp.asarray(prompt_lengths), jnp.asarray(completion_lengths), P, T)
    positions = attends.plain_positions(jnp.asarray(prompt_lengths), P, T)
    padded = decoder.logits(decoder(ids, positions, attend)[0])
    for row, (p, t) in enumerate(zip(prompt_lengths, completion_lengths, strict=True)):
        columns = np.r_[:p, P : P + t]
        alone = run(decoder, ids[row, columns][None])[0]
        np.testing.assert_allclose(padded[row, columns], alone, atol=2e-5)


def test_packed_rows_equal_rows_apart(decoder):
    ids = jnp.asarray(np.random.default_rng(2).integers(0, 19, (1, 12)))
    segments = jnp.asarray([[0] * 4 + [1] * 6 + [-1] * 2])
    positions = jnp.asarray([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 0]])
    hidden, _ = decoder(ids, positions, attends.packed(segments, positions))
    together = decoder.logits(hidden)[0]
    np.testing.assert_allclose(together[:4], run(decoder, ids[:, :4])[0], atol=2e-5)
    np.testing.assert_allclose(together[4:10], run(decoder, ids[:, 4:10])[0], atol=2e-5)
    assert np.isfinite(together).all()


def test_a_window_hides_what_lies_further_back():
    """Two layers that see 3 tokens each reach 4 back, so token 0 cannot move the logits at position 5."""
    windowed = build(num_layers=2, layer_windows=(3, 3))
    ids = np.random.default_rng(3).integers(0, 19, (1, 8))
    changed = ids.copy()
    changed[:, 0] = (changed[:, 0] + 1) % 19
    difference = np.abs(run(windowed, ids) - run(windowed, changed)).max(axis=(0, 2))
    assert (difference[:5] > 1e-4).all() and (difference[5:] == 0).all()


def test_the_cache_is_carried_through_every_layer(decoder):
    """An attend that stores its keys by layer sees all layers, and the model returns what it stored."""

    def storing(query, key, value, layer, window, cache):
        out, _ = plain(query, key, value, layer, window, None)
        return out, cache.at[layer].set(key)

    lengths = jnp.full(2, 5)
    plain = attends.plain(lengths, jnp.zeros_like(lengths), 5, 0)
    ids = jnp.asarray(np.random.default_rng(4).integers(0, 19, (2, 5)))
    positions = jnp.broadcast_to(jnp.arange(5), (2, 5))
    hidden, keys = decoder(ids, positions, storing, jnp.zeros((3, 2, 5, 2, 6)))
    np.testing.assert_array_equal(hidden, decoder(ids, positions, plain)[0])
    assert (np.abs(keys).max(axis=(1, 2, 3, 4)) > 0).all()


def test_gradients_are_finite_and_reach_every_parameter(decoder):
    structure, params = nnx.split(decoder)
    ids = jnp.asarray(np.random.default_rng(5).integers(0, 19, (2, 9)))

    @jax.grad
    def gradient(params):
        return jax.nn.log_softmax(run(nnx.merge(structure, params), ids))[..., 0].sum()

    for path, leaf in nnx.to_flat_state(gradient(params)):
        assert np.isfinite(leaf[...]).all(), path
        assert np.abs(leaf[...]).max() > 0, path


def test_recomputing_changes_memory_and_no_gradient():
    ids = jnp.asarray(np.random.default_rng(5).integers(0, 19, (4, 24)))
    gradients, memory = {}, {}
    for remat in ("none", "dots", "full"):
        structure, params = nnx.split(build(remat=remat, qk_norm=True, num_layers=8))

        def loss(params, structure=structure):
            return (run(nnx.merge(structure, params), ids) ** 2).sum()

        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        gradients[remat] = compiled(params)
        memory[remat] = compiled.memory_analysis().temp_size_in_bytes
    for remat in ("dots", "full"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
            gradients[remat],
            gradients["none"],
        )
    assert memory["full"] < 0.8 * memory["dots"] < 0.64 * memory["none"], memory


def test_bfloat16_computes_in_bfloat16_and_ends_in_float32():
    master = build()
    half = build(dtype="bfloat16")
    ids = jnp.asarray(np.random.default_rng(6).integers(0, 19, (2, 9)))
    positions = jnp.broadcast_to(jnp.arange(9), ids.shape)
    lengths = jnp.full(2, 9)
    hidden, _ = half(ids, positions, attends.plain(lengths, jnp.zeros_like(lengths), 9, 0))
    assert hidden.dtype == jnp.bfloat16 and half.logits(hidden).dtype == jnp.float32
    assert half.embedding[...].dtype == jnp.float32
    np.testing.assert_allclose(half.logits(hidden), run(master, ids), atol=0.1)


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"num_kv_heads": 3}, "num_heads"),
        ({"head_dim": 5}, "head_dim"),
        ({"layer_windows": (1,)}, "layer_windows"),
        ({"layer_windows": (0, -3)}, "layer_windows"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"norm_eps": math.nan}, "norm_eps"),
        ({"rope_scaling": RopeScaling(factor=-1.0)}, "rope_scaling.factor"),
        ({"lora": LoraConfig(alpha=math.nan)}, "lora.alpha"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"remat": True}, "remat"),
    ],
)
def test_an_impossible_shape_names_its_field(changes, field):
    with pytest.raises(ValueError, match=f"model.{field}"):
        build(**changes)
