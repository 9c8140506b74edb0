"""The architecture of a decoder, as plain data."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for longer contexts. Names follow Transformers' `rope_scaling`."""

    kind: Literal["linear", "llama3", "yarn"] = "linear"
    """Which rule stretches the frequencies."""
    factor: float = 1.0
    """Context length over the original context length."""
    original_max_position: int = 8192
    """Context length of pre-training, tokens (llama3 and yarn)."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths longer than original/low_freq_factor are fully stretched."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths shorter than original/high_freq_factor are left alone."""
    beta_fast: float = 32.0
    """yarn: rotations above which a frequency is left alone."""
    beta_slow: float = 1.0
    """yarn: rotations below which a frequency is fully stretched."""
    attention_factor: float | None = None
    """yarn: multiplier of the rotary cosines and sines; None computes 0.1 ln(factor) + 1."""


Target = Literal["query", "key", "value", "out", "gate", "up", "down"]


Remat = Literal["none", "dots", "full"]


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (https://arxiv.org/abs/2106.09685): W + (alpha / rank) A B, only A and B trained."""

    rank: int = 16
    """Inner width of an adapter."""
    alpha: float = 32.0
    """Adapters are scaled by alpha / rank."""
    targets: tuple[Target, ...] = ("query", "key", "value", "out", "gate", "up", "down")
    """Projections that get an adapter, in every layer."""


@dataclass(frozen=True)
class ModelConfig:
    """A Llama/Qwen-style decoder: pre-norm RMSNorm, rotary attention with grouped queries, gated MLP."""

    vocab_size: int = 0
    """Rows of the embedding, tokens; 0 takes the tokenizer's size."""
    num_layers: int = 4
    """Decoder blocks."""
    width: int = 128
    """Residual stream width D."""
    mlp_width: int = 384
    """Hidden width of the gated MLP."""
    num_heads: int = 4
    """Query heads."""
    num_kv_heads: int = 4
    """Key and value heads; num_heads is a multiple of it."""
    head_dim: int = 32
    """Width of one head; even."""
    max_position: int = 2048
    """Context length, tokens: prompt + completion must fit."""
    rope_theta: float = 10_000.0
    """Rotary base."""
    rope_scaling: RopeScaling | None = None
    """Rotary scaling for long contexts; None for none."""
    norm_eps: float = 1e-6
    """RMSNorm epsilon."""
    qk_norm: bool = False
    """RMSNorm on every query and key head (Qwen3)."""
    qkv_bias: bool = False
    """Biases on query, key and value projections (Qwen2)."""
    out_bias: bool = False
    """Bias on the attention output projection (Llama with attention_bias)."""
    mlp_bias: bool = False
    """Biases in the MLP (Llama with mlp_bias)."""
    tied_embeddings: bool = True
    """Whether the head is the transposed embedding."""
    layer_windows: tuple[int, ...] = ()
    """Sliding window per layer, tokens (0 = full attention); empty when no layer has one."""
    lora: LoraConfig | None = None
    """Adapters; None trains every parameter."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of the blocks; norms, softmax, head and log-probabilities are float32 always."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Storage dtype of the parameters."""
    remat: Remat = "full"
    """What the backward pass computes again instead of storing it: each block whole (full, least memory), all but the
    outputs of its projections (dots), or nothing (none, fastest)."""
