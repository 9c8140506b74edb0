"""Adapters start at the base model, train alone, and merge into what they compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import attention, lora
from grpo_jax.models.config import LoraConfig, ModelConfig
from grpo_jax.models.decoder import Adapter, Decoder

TINY = ModelConfig(
    vocab_size=19,
    num_layers=2,
    width=12,
    mlp_width=20,
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
    qkv_bias=True,
)
LORA = LoraConfig(rank=3, alpha=6.0, targets=("query", "value", "down"))
IDS = jnp.asarray(np.random.default_rng(0).integers(0, 19, (2, 7)))


def logits(decoder: Decoder) -> jax.Array:
    lengths = jnp.full(2, 7)
    attend = attention.plain(lengths, jnp.zeros_like(lengths), 7, 0)
    return decoder.logits(decoder(IDS, jnp.broadcast_to(jnp.arange(7), (2, 7)), attend)[0])


@pytest.fixture(scope="module")
def base() -> Decoder:
    return Decoder(TINY, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def trained(base) -> Decoder:
    """Adapters whose B is no longer zero."""
    structure, adapters, frozen = lora.split(lora.attach(base, LORA, rngs=nnx.Rngs(1)))
    keys = iter(jax.random.split(jax.random.key(2), 6))
    adapters = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape), adapters)
    return nnx.merge(structure, adapters, frozen)


def test_fresh_adapters_change_nothing(base):
    adapted = lora.attach(base, LORA, rngs=nnx.Rngs(1))
    np.testing.assert_array_equal(logits(adapted), logits(base))
    assert np.std(adapted.blocks.query.adapter.a[...]) == pytest.approx(12**-0.5, rel=0.3)


def test_only_adapters_of_the_targets_train(base):
    _, trainable, frozen = lora.split(lora.attach(base, LORA, rngs=nnx.Rngs(1)))
    shapes = {".".join(path): v.shape for path, v in nnx.to_flat_state(trainable)}
    assert shapes == {
        "blocks.query.adapter.a": (2, 12, 3),
        "blocks.query.adapter.b": (2, 3, 12),
        "blocks.value.adapter.a": (2, 12, 3),
        "blocks.value.adapter.b": (2, 3, 6),
        "blocks.down.adapter.a": (2, 20, 3),
        "blocks.down.adapter.b": (2, 3, 12),
    }
    assert not any(isinstance(v, Adapter) for _, v in nnx.to_flat_state(frozen))
    _, everything, nothing = lora.split(base)
    assert len(nnx.to_flat_state(everything)) == 14 and len(nnx.to_flat_state(nothing)) == 0


def test_merging_is_what_the_adapters_compute(base, trained):
    merged = lora.merge(trained)
    assert merged.config == base.config
    np.testing.assert_allclose(logits(merged), logits(trained), atol=1e-5)
    assert np.abs(logits(trained) - logits(base)).max() > 0.05
    expected = (
        base.blocks.query.kernel[1]
        + 2.0 * trained.blocks.query.adapter.a[1] @ trained.blocks.query.adapter.b[1]
    )
    np.testing.assert_allclose(merged.blocks.query.kernel[1], expected, atol=1e-6)
    np.testing.assert_array_equal(merged.blocks.key.kernel[...], base.blocks.key.kernel[...])


def test_the_gradient_reaches_adapters_through_the_chain_rule_of_the_merged_kernel(trained):
    """dL/dA = scale · dL/dW Bᵀ and dL/dB = scale · Aᵀ dL/dW, with W the merged kernel."""
    structure, adapters, frozen = lora.split(trained)
    plain, weights = nnx.split(lora.merge(trained))
    by_adapter = jax.grad(lambda p: (logits(nnx.merge(structure, p, frozen)) ** 2).sum())(adapters)
    by_kernel = jax.grad(lambda p: (logits(nnx.merge(plain, p)) ** 2).sum())(weights)
    a, b = trained.blocks.down.adapter.a[0], trained.blocks.down.adapter.b[0]
    kernel = by_kernel["blocks"]["down"]["kernel"][0]
    np.testing.assert_allclose(
        by_adapter["blocks"]["down"]["adapter"]["a"][0], 2 * kernel @ b.T, rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(
        by_adapter["blocks"]["down"]["adapter"]["b"][0], 2 * a.T @ kernel, rtol=1e-3, atol=1e-3
    )


def test_a_bfloat16_base_keeps_float32_adapters():
    base = Decoder(ModelConfig(**(vars(TINY) | {"param_dtype": "bfloat16"})), rngs=nnx.Rngs(0))
    adapted = lora.attach(base, LORA, rngs=nnx.Rngs(1))
    assert adapted.blocks.query.kernel[...].dtype == jnp.bfloat16
    assert adapted.blocks.query.adapter.a[...].dtype == jnp.float32
    assert lora.merge(adapted).blocks.query.kernel[...].dtype == jnp.bfloat16


def test_adapters_on_adapters_and_empty_ones_are_refused(base):
    with pytest.raises(ValueError, match="already has adapters"):
        lora.attach(lora.attach(base, LORA, rngs=nnx.Rngs(1)), LORA, rngs=nnx.Rngs(1))
    with pytest.raises(ValueError, match=r"model\.lora"):
        lora.attach(base, LoraConfig(rank=0), rngs=nnx.Rngs(1))
