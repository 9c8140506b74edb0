"""Which tensor of a Transformers checkpoint holds which parameter: one table, read in both directions."""

from collections.abc import Iterator
from typing import NamedTuple

from grpo_jax.models.config import ModelConfig

LAYER = "model.layers.{layer}."

TENSORS = {
    "embedding": "model.embed_tokens.weight",
    "blocks.attention_norm": LAYER + "input_layernorm.weight",
    "blocks.query.kernel": LAYER + "self_attn.q_proj.weight",
    "blocks.query.bias": LAYER + "self_attn.q_proj.bias",
    "blocks.query_norm": LAYER + "self_attn.q_norm.weight",
    "blocks.key.kernel": LAYER + "self_attn.k_proj.weight",
    "blocks.key.bias": LAYER + "self_attn.k_proj.bias",
    "blocks.key_norm": LAYER + "self_attn.k_norm.weight",
    "blocks.value.kernel": LAYER + "self_attn.v_proj.weight",
    "blocks.value.bias": LAYER + "self_attn.v_proj.bias",
    "blocks.out.kernel": LAYER + "self_attn.o_proj.weight",
    "blocks.out.bias": LAYER + "self_attn.o_proj.bias",
    "blocks.mlp_norm": LAYER + "post_attention_layernorm.weight",
    "blocks.gate.kernel": LAYER + "mlp.gate_proj.weight",
    "blocks.gate.bias": LAYER + "mlp.gate_proj.bias",
    "blocks.up.kernel": LAYER + "mlp.up_proj.weight",
    "blocks.up.bias": LAYER + "mlp.up_proj.bias",
    "blocks.down.kernel": LAYER + "mlp.down_proj.weight",
    "blocks.down.bias": LAYER + "mlp.down_proj.bias",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
"""Our parameter to Transformers' tensor; a parameter under `blocks` stacks the tensors of all layers."""

DERIVED = ("rotary_emb.inv_freq",)
"""Ends of tensor names that old checkpoints store although the config determines them."""


class Slot(NamedTuple):
    """Where a checkpoint tensor goes."""

    name: str
    parameter: str
    layer: int | None
    transposed: bool


def slots(parameter: str, config: ModelConfig) -> Iterator[Slot]:
    """The checkpoint tensors of one parameter. Checkpoints store matrices as [out, in], we as [in, out]."""
    transposed = parameter.endswith(".kernel") or parameter == "head"
    template = TENSORS[parameter]
    if not parameter.startswith("blocks."):
        yield Slot(template, parameter, None, transposed)
        return
    for layer in range(config.num_layers):
        yield Slot(template.format(layer=layer), parameter, layer, transposed)
