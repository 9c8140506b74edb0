"""FLOPs against counts made by hand, by the compiler, and by the other layout."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from grpo_jax.models import attention
from grpo_jax.models.config import LoraConfig, ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import flops

CONFIG = ModelConfig(
    vocab_size=11, num_layers=1, width=4, mlp_width=6, num_heads=2, num_kv_heads=1, head_dim=2, remat="none"
)


def test_one_token_by_hand():
    work = flops.forward(CONFIG, tokens=1, pairs=1, head_tokens=1)
    # query 4x4, key and value 4x2 each, out 4x4, three times 4x6: 120 multiply-adds
    assert work.projections == 2 * 120
    assert work.attention == 2 * 2 * (2 * 2)  # a score and a weighted value of two heads of width two
    assert work.head == 2 * 4 * 11
    assert work.total == 240 + 16 + 88
    assert flops.training(work, frozen_base=False) == 3 * work.total


def test_adapters_train_alone():
    config = replace(CONFIG, lora=LoraConfig(rank=3, targets=("query", "down")))
    work = flops.forward(config, tokens=10, pairs=55, head_tokens=5)
    assert work.adapters == 2 * 10 * 3 * ((4 + 4) + (6 + 4))
    everything = flops.training(work, frozen_base=False)
    assert everything - flops.training(work, frozen_base=True) == work.projections + work.head


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_the_compiler_counts_the_same(lora):
    """One layer, so that its scan runs once; the compiler also counts elementwise work, which widths like these outweigh."""
    config = replace(CONFIG, width=128, mlp_width=256, num_heads=4, head_dim=32, vocab_size=512, lora=lora)
    structure, params = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    N, L = 2, 64

    def logits(params):
        lengths = jnp.full(N, L // 2)
        attend = attention.plain(lengths, lengths, L // 2, L // 2)
        decoder = nnx.merge(structure, params)
        hidden, _ = decoder(
            jnp.zeros((N, L), int), attention.plain_positions(lengths, L // 2, L // 2), attend
        )
        return decoder.logits(hidden)

    counted = jax.jit(logits).lower(params).compile().cost_analysis()["flops"]
    ours = flops.forward(config, tokens=N * L, pairs=N * L * L, head_tokens=N * L).total
    assert ours == pytest.approx(counted, rel=0.05)


def test_a_group_of_one_is_a_sequence():
    sizes = {"prompt": 7, "completion": 5}
    assert flops.group_work(CONFIG, **sizes, group_size=1) == flops.plain_work(CONFIG, **sizes)


def test_a_group_computes_its_prompt_once():
    plain = flops.plain_work(CONFIG, prompt=7, completion=5)
    group = flops.group_work(CONFIG, prompt=7, completion=5, group_size=4)
    prompt = flops.plain_work(CONFIG, prompt=7, completion=0)
    assert 4 * plain.total - group.total == 3 * prompt.total
