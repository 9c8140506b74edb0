"""config.json files as published, and every field that would change the result and cannot be had."""

import pytest

from grpo_jax.models.config import ModelConfig, RopeScaling
from grpo_jax.models.families import from_transformers, to_transformers

LLAMA = dict(
    model_type="llama",
    architectures=["LlamaForCausalLM"],
    vocab_size=128256,
    hidden_size=3072,
    intermediate_size=8192,
    num_hidden_layers=28,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    hidden_act="silu",
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    rope_scaling=dict(
        factor=32.0,
        high_freq_factor=4.0,
        low_freq_factor=1.0,
        original_max_position_embeddings=8192,
        rope_type="llama3",
    ),
    tie_word_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    pretraining_tp=1,
    torch_dtype="bfloat16",
    transformers_version="4.45.0",
    use_cache=True,
    eos_token_id=[128001, 128008],
)
QWEN = dict(
    model_type="qwen2",
    architectures=["Qwen2ForCausalLM"],
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    hidden_act="silu",
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    rope_theta=10000,
    sliding_window=4096,
    use_sliding_window=False,
    max_window_layers=28,
    tie_word_embeddings=False,
    attention_dropout=0.0,
)


def test_llama_3_2_3b():
    assert from_transformers(LLAMA) == ModelConfig(
        vocab_size=128256,
        num_layers=28,
        width=3072,
        mlp_width=8192,
        num_heads=24,
        num_kv_heads=8,
        head_dim=128,
        max_position=131072,
        rope_theta=500000.0,
        rope_scaling=RopeScaling(kind="llama3", factor=32.0),
        norm_eps=1e-5,
    )


def test_qwen2_5_math_7b_has_biases_the_file_does_not_mention_and_no_window():
    config = from_transformers(QWEN)
    assert config.qkv_bias and not config.out_bias and not config.qk_norm
    assert config.head_dim == 128 and config.layer_windows == () and not config.tied_embeddings


def test_qwen_windows_start_at_max_window_layers():
    config = from_transformers(QWEN | dict(use_sliding_window=True, max_window_layers=26))
    assert config.layer_windows == (0,) * 26 + (4096,) * 2


def test_yarn_as_qwen_cards_write_it():
    scaling = dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)
    config = from_transformers(QWEN | dict(rope_scaling=scaling))
    assert config.rope_scaling == RopeScaling(kind="yarn", factor=4.0, original_max_position=32768)


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(model_type="mixtral"), "model_type is 'mixtral'"),
        (dict(architectures=["LlamaForSequenceClassification"]), "architectures"),
        (dict(hidden_act="gelu"), "hidden_act is 'gelu'"),
        (dict(quantization_config={"bits": 4}), "quantization_config"),
        (dict(attention_dropout=0.1), "attention_dropout is 0.1"),
        (dict(sliding_window=128), "sliding_window is 128"),
        (dict(logit_softcapping=30.0), "logit_softcapping"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
        (dict(rope_scaling=dict(rope_type="dynamic", factor=2.0)), "rope_type is 'dynamic'"),
        (dict(rope_scaling=dict(rope_type="linear", factor=2.0, tilt=1)), "'tilt'"),
        (dict(rope_scaling=dict(rope_type="linear")), "factor"),
        (dict(rope_scaling=dict(rope_type="yarn", factor=2.0, truncate=False)), "truncate"),
        (dict(rope_parameters=dict(full_attention={}), rope_scaling=None), "full_attention"),
        (dict(num_hidden_layers=None), "num_hidden_layers is None"),
        (dict(layer_types=["chunked_attention"] * 28), "layer_types"),
        (dict(layer_types=["sliding_attention"] * 28), "sliding_window"),
    ],
)
def test_what_is_not_supported_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        from_transformers(LLAMA | fields)


def test_fields_of_another_family_are_named():
    with pytest.raises(ValueError, match="attention_bias"):
        from_transformers(QWEN | dict(attention_bias=True))


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(qk_norm=True, mlp_bias=True), "mlp_bias"),
        (dict(layer_windows=(2, 0, 0, 0)), "layer_windows"),
        (dict(qk_norm=True, layer_windows=(2, 3, 0, 0)), "several sizes"),
        (dict(out_bias=True), "out_bias"),
    ],
)
def test_a_model_no_family_has_is_not_exported_as_another(changes, named):
    with pytest.raises(ValueError, match=named):
        to_transformers(ModelConfig(vocab_size=10, **changes))
