"""Matmul FLOPs of a decoder in closed form: two per multiply-add. Norms, softmax and other elementwise work are left out.

A compiler's own count takes the body of a loop once, so it cannot be used for a model whose layers are scanned.
"""

from typing import NamedTuple

from grpo_jax.models.config import ModelConfig


class Forward(NamedTuple):
    """FLOPs of a forward pass, by what would be done again in the backward pass."""

    projections: float
    """Attention's and the MLP's, of all layers."""
    adapters: float
    """LoRA's."""
    attention: float
    """Scores and weighted values."""
    head: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def forward(config: ModelConfig, *, tokens: float, pairs: float, head_tokens: float) -> Forward:
    """The forward pass over `tokens`, of which a query meets a key `pairs` times and `head_tokens` meet the head."""
    shapes = projection_shapes(config)
    lora = config.lora
    adapters = sum(lora.rank * sum(shapes[name]) for name in lora.targets) if lora else 0
    return Forward(
        projections=2.0 * tokens * config.num_layers * sum(i * o for i, o in shapes.values()),
        adapters=2.0 * tokens * config.num_layers * adapters,
        attention=4.0 * pairs * config.num_layers * config.num_heads * config.head_dim,
        head=2.0 * head_tokens * config.width * config.vocab_size,
    )


def training(work: Forward, *, frozen_base: bool) -> float:
    """Forward and backward passes: a matmul's backward is two matmuls, or one where its weight does not train."""
    base = 2 if frozen_base else 3
    return base * (work.projections + work.head) + 3 * (work.adapters + work.attention)


def projection_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(in, out) of every projection of a layer."""
    D, F = config.width, config.mlp_width
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "query": (D, queries),
        "key": (D, keys),
        "value": (D, keys),
        "out": (queries, D),
        "gate": (D, F),
        "up": (D, F),
        "down": (F, D),
    }


def causal_pairs(length: float) -> float:
    """Query-key pairs of a sequence in which every token sees itself and all before it."""
    return length * (length + 1) / 2


def plain_work(config: ModelConfig, *, prompt: float, completion: float) -> Forward:
    """One sequence computed by itself, prompt and all, without padding."""
    length = prompt + completion
    return forward(config, tokens=length, pairs=causal_pairs(length), head_tokens=completion)


def group_work(config: ModelConfig, *, prompt: float, completion: float, group_size: int) -> Forward:
    """A prompt computed once with `group_size` completions of it, without padding."""
    own = completion * prompt + causal_pairs(completion)
    return forward(
        config,
        tokens=prompt + group_size * completion,
        pairs=causal_pairs(prompt) + group_size * own,
        head_tokens=group_size * completion,
    )
