"""GGUF files (extra: gguf): weights dequantised to float32, config and tokenizer built from the fields.

The file is presented under Transformers' names and layout, so loading treats it like any other checkpoint.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = {
    "vocab_size": "vocab_size",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""GGUF field, after the architecture's name, to config.json field."""

REPEATED = {"attention.value_length": "head_dim", "rope.dimension_count": "head_dim"}
"""Fields that must agree with another: unequal head widths or partial rotation would be another model."""

ROPE = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}
"""Scaling fields; `finetuned`, the one other field here that changes nothing, is skipped."""

LAYER = "model.layers.{layer}."
TENSORS = {
    "attn_norm": LAYER + "input_layernorm",
    "attn_q": LAYER + "self_attn.q_proj",
    "attn_q_norm": LAYER + "self_attn.q_norm",
    "attn_k": LAYER + "self_attn.k_proj",
    "attn_k_norm": LAYER + "self_attn.k_norm",
    "attn_v": LAYER + "self_attn.v_proj",
    "attn_output": LAYER + "self_attn.o_proj",
    "ffn_norm": LAYER + "post_attention_layernorm",
    "ffn_gate": LAYER + "mlp.gate_proj",
    "ffn_up": LAYER + "mlp.up_proj",
    "ffn_down": LAYER + "mlp.down_proj",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
"""GGUF tensor (after `blk.N.` for a layer's) to Transformers tensor, both without .weight or .bias."""


class GgufFile:
    """One .gguf file as a checkpoint."""

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self._reader = _open(self._path)
        self._fields = dict(self._reader.fields)
        self.architecture = self.field("general.architecture")
        self._tensors = {self._name(tensor.name): tensor for tensor in self._reader.tensors}
        # GGUF writes a shape fastest axis first.
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }
        self._heads = {
            "q_proj": self.field(f"{self.architecture}.attention.head_count"),
            "k_proj": self.field(f"{self.architecture}.attention.head_count_kv"),
        }

    def file_of(self, name: str) -> str:
        del name
        return str(self._path)

    def field(self, name: str) -> Any:
        """A metadata field's value."""
        if name not in self._fields:
            raise ValueError(f"{self._path} has no field {name}")
        return self._fields[name].contents()

    def get(self, name: str, default: Any = None) -> Any:
        """A metadata field's value, or the default if the file has none."""
        return self.field(name) if name in self._fields else default

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Part of a tensor; quantised rows are independent, so only the wanted ones are dequantised."""
        from gguf import dequantize

        tensor = self._tensors[name]
        if self._is_permuted(name):
            return _unpermute(dequantize(tensor.data, tensor.tensor_type), self._heads[_module(name)])[index]
        return dequantize(tensor.data[index[0]], tensor.tensor_type)[(slice(None), *index[1:])]

    def transformers_config(self) -> dict[str, Any]:
        """The config.json this file would have had."""
        if self.architecture not in ("llama", "qwen2", "qwen3"):
            raise ValueError(
                f"{self._path} has general.architecture {self.architecture!r}; expected llama, qwen2 or qwen3"
            )
        prefix = self.architecture + "."
        found = {name.removeprefix(prefix) for name in self._fields if name.startswith(prefix)}
        known = CONFIG.keys() | REPEATED.keys() | ROPE.keys() | {"rope.scaling.finetuned"}
        if found - known:
            raise ValueError(
                f"{self._path} has the field {prefix}{min(found - known)}, which is not supported"
            )
        fields = {ours: self.field(prefix + name) for name, ours in CONFIG.items() if name in found}
        fields["model_type"] = self.architecture
        fields["vocab_size"] = self.shapes["model.embed_tokens.weight"][0]
        fields["rms_norm_eps"] = _shortest(fields["rms_norm_eps"])
        fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
        for name, twin in REPEATED.items():
            if name in found and self.field(prefix + name) != fields[twin]:
                raise ValueError(
                    f"{self._path} has {prefix}{name} {self.field(prefix + name)}; expected {fields[twin]}"
                )
        if self.get(prefix + "rope.scaling.type", "none") != "none":
            fields["rope_scaling"] = {
                ours: self.field(prefix + name) for name, ours in ROPE.items() if name in found
            }
        fields["tie_word_embeddings"] = "lm_head.weight" not in self.shapes
        fields["attention_bias"] = self.architecture != "qwen2" and _LAYER_0_BIAS in self.shapes
        return fields

    def _name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        layer = None
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".", 2)
        if stem not in TENSORS:
            raise ValueError(f"tensor {name} in {self._path} is not supported")
        return f"{TENSORS[stem].format(layer=layer)}.{kind}"

    def _is_permuted(self, name: str) -> bool:
        """llama.cpp interleaves the rotary pairs of Llama queries and keys; those of Qwen are half-split."""
        return self.architecture == "llama" and _module(name) in self._heads


_LAYER_0_BIAS = "model.layers.0.self_attn.q_proj.bias"


def _module(name: str) -> str:
    return name.split(".")[-2]


def _unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows from interleaved rotary pairs to the half-split layout, head by head."""
    rows, *rest = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(weight.shape)


def _shortest(value: float) -> float:
    """A float32 as the decimal it was written from: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _open(path: Path):
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    facts = path.stat()
    return _parse(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1)
def _parse(path: Path, mtime: int, size: int):
    """Config, tokenizer and weights are read one after the other; walking the vocabulary takes seconds each time."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ValueError(f"{path} is a GGUF file; reading it needs `pip install grpo_jax[gguf]`") from None
    try:
        return GGUFReader(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a whole GGUF file: {error}") from None
