"""Small random Transformers models in PyTorch, one per switch of the decoder, for the parity tests."""

from pathlib import Path

SMALL = dict(
    vocab_size=67,
    hidden_size=24,
    intermediate_size=36,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
    rope_theta=500_000.0,
)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128, rope_theta=1e6)

CONFIGS = {
    "llama2": ("llama", {}),
    "llama2-multi-head": ("llama", dict(num_key_value_heads=4, rms_norm_eps=1e-5)),
    "llama3.1": ("llama", dict(rope_parameters=LLAMA3)),
    "llama3.2-tied": ("llama", dict(rope_parameters=LLAMA3 | {"factor": 32.0}, tie_word_embeddings=True)),
    "llama-linear": ("llama", dict(rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=1e4))),
    "llama-all-biases": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "smollm2": (
        "llama",
        dict(
            hidden_size=27, num_attention_heads=9, num_key_value_heads=3, head_dim=6, tie_word_embeddings=True
        ),
    ),
    "qwen2.5": ("qwen2", {}),
    "qwen2.5-tied-yarn": ("qwen2", dict(rope_parameters=YARN, tie_word_embeddings=True)),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=50, max_window_layers=1)),
    "qwen3": ("qwen3", dict(head_dim=10)),
    "qwen3-tied-one-kv-head": ("qwen3", dict(head_dim=16, num_key_value_heads=1, tie_word_embeddings=True)),
    "qwen3-yarn-window-bias": (
        "qwen3",
        dict(
            head_dim=8,
            rope_parameters=YARN
            | {"mscale": 1.3, "mscale_all_dim": 0.7, "beta_fast": 20.0, "beta_slow": 2.0},
            use_sliding_window=True,
            sliding_window=33,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            attention_bias=True,
        ),
    ),
    "qwen3-odd-sizes": (
        "qwen3",
        dict(
            vocab_size=71, hidden_size=21, intermediate_size=29, num_attention_heads=5, num_key_value_heads=5
        )
        | dict(head_dim=14, num_hidden_layers=1),
    ),
}


def build(name: str, seed: int = 0):
    """The model of that name with every parameter random, norms and biases too."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

    family, changes = CONFIGS[name]
    kind = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}[family]
    torch.manual_seed(seed)
    config = kind(**(SMALL | changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * noise if "norm" in path else noise * config.hidden_size**-0.5)
    return model


def save(name: str, folder: Path, *, shard_size: str = "1GB"):
    model = build(name)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model
