"""Transformers' config.json to `ModelConfig` and back, for Llama 2/3, SmolLM2, Qwen2/2.5 and Qwen3 (dense).

Every field of a config.json is read, known to change nothing here, or an error that names it: a field nobody
has looked at might change the logits, and a model that is quietly another one trains without complaint.
"""

from collections.abc import Mapping
from typing import Any, Literal

from grpo_jax.models import rope_fields
from grpo_jax.models.config import ModelConfig

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

MUST_BE = {
    "hidden_act": ("silu",),
    "attention_dropout": (0, 0.0, None),
    "rope_interleaved": (False, None),
    "partial_rotary_factor": (1, 1.0, None),
    "use_mrope": (False, None),
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
}
"""Fields that change the result, and the values under which they do not."""

HARMLESS = {
    *("transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path", "auto_map"),
    *(
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "unk_token_id",
        "decoder_start_token_id",
    ),
    *("initializer_range", "use_cache", "pretraining_tp", "is_llama_config", "transformers.js_config"),
    *("output_hidden_states", "output_attentions", "return_dict", "torchscript", "use_bfloat16"),
    *("chunk_size_feed_forward", "id2label", "label2id", "problem_type", "tie_encoder_decoder", "is_decoder"),
    *("cross_attention_hidden_size", "finetuning_task", "task_specific_params", "tokenizer_class", "prefix"),
    *("_attn_implementation_autoset", "attn_implementation", "_attn_implementation"),
    *("temperature", "top_k", "top_p", "do_sample", "max_length", "repetition_penalty"),
    *("unsloth_fixed", "unsloth_version"),
}
"""Fields about training, generation, tokens or bookkeeping; none changes a logit."""

READ = {
    *("model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps"),
    *("tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias"),
    *("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
}
"""Fields this file reads."""


def from_transformers(
    fields: Mapping[str, Any],
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    param_dtype: Literal["float32", "bfloat16"] = "float32",
) -> ModelConfig:
    """The architecture a config.json describes; the dtypes are the caller's, not the file's."""
    family = fields.get("model_type")
    if family not in ARCHITECTURES:
        raise ValueError(f"config.json model_type is {family!r}; expected one of {', '.join(ARCHITECTURES)}")
    _check_fields(fields, family)
    heads = _required(fields, "num_attention_heads")
    width = _required(fields, "hidden_size")
    theta, scaling = rope_fields.read(fields)
    bias = fields.get("attention_bias") or False
    return ModelConfig(
        vocab_size=_required(fields, "vocab_size"),
        num_layers=_required(fields, "num_hidden_layers"),
        width=width,
        mlp_width=_required(fields, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_dim=fields.get("head_dim") or (128 if family == "qwen3" else width // heads),
        max_position=fields.get("max_position_embeddings") or (2048 if family == "llama" else 32768),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=fields.get("rms_norm_eps", 1e-6),
        qk_norm=family == "qwen3",
        qkv_bias=family == "qwen2" or bias,
        out_bias=bias,
        mlp_bias=fields.get("mlp_bias") or False,
        tied_embeddings=fields.get("tie_word_embeddings") or False,
        layer_windows=_windows(fields),
        dtype=dtype,
        param_dtype=param_dtype,
    )


def to_transformers(config: ModelConfig) -> dict[str, Any]:
    """The config.json of this architecture, in the family that can express it."""
    family = _family(config)
    fields = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "dtype": config.param_dtype,
        # Both spellings: rope_parameters is Transformers 5's, the other two are what older readers know.
        "rope_parameters": {"rope_theta": config.rope_theta, **rope_fields.write(config.rope_scaling)},
        "rope_theta": config.rope_theta,
        "rope_scaling": rope_fields.write(config.rope_scaling) if config.rope_scaling else None,
    }
    if family != "qwen2":
        fields["attention_bias"] = config.qkv_bias
    if family == "llama":
        fields["mlp_bias"] = config.mlp_bias
    else:
        fields |= _window_fields(config)
    return fields


def _check_fields(fields: Mapping[str, Any], family: str) -> None:
    for name, value in fields.items():
        if name in MUST_BE and value not in MUST_BE[name]:
            raise ValueError(f"config.json {name} is {value!r}; only {MUST_BE[name][0]!r} is supported")
        if name not in MUST_BE and name not in HARMLESS and name not in READ:
            raise ValueError(
                f"config.json {name} ({value!r}) is not a field this decoder knows; it may change logits"
            )
    architectures = fields.get("architectures") or [ARCHITECTURES[family]]
    if architectures != [ARCHITECTURES[family]]:
        raise ValueError(
            f"config.json architectures is {architectures}; expected [{ARCHITECTURES[family]!r}]"
        )
    foreign = {"attention_bias": ("llama", "qwen3"), "mlp_bias": ("llama",)}
    for name, families in foreign.items():
        if fields.get(name) and family not in families:
            raise ValueError(f"config.json {name} is {fields[name]!r}, which {family} models do not have")


def _required(fields: Mapping[str, Any], name: str) -> int:
    if not isinstance(fields.get(name), int):
        raise ValueError(f"config.json {name} is {fields.get(name)!r}; expected a whole number")
    return fields[name]


def _windows(fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Window of every layer; Qwen slides only if use_sliding_window, by default from max_window_layers on."""
    layers = _required(fields, "num_hidden_layers")
    window = fields.get("sliding_window") if fields.get("use_sliding_window") else None
    if fields.get("model_type") == "llama" and fields.get("sliding_window") is not None:
        raise ValueError(
            f"config.json sliding_window is {fields['sliding_window']!r}, which llama models do not have"
        )
    first = fields.get("max_window_layers", 28)
    types = fields.get("layer_types") or [
        "sliding_attention" if window and layer >= first else "full_attention" for layer in range(layers)
    ]
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown or len(types) != layers:
        raise ValueError(
            f"config.json layer_types is {types}; expected full or sliding_attention for each layer"
        )
    if "sliding_attention" not in types:
        return ()
    if not window:
        raise ValueError("config.json layer_types has sliding_attention, but no sliding_window is in use")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _window_fields(config: ModelConfig) -> dict[str, Any]:
    window = max(config.layer_windows, default=0)
    return {
        "use_sliding_window": window > 0,
        "sliding_window": window or None,
        "layer_types": [
            "sliding_attention" if w else "full_attention"
            for w in config.layer_windows or (0,) * config.num_layers
        ],
    }


def _family(config: ModelConfig) -> str:
    """The family whose config.json can say everything this config does."""
    family = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias and not config.out_bias else "llama"
    windows = set(config.layer_windows) - {0}
    problem = None
    if len(windows) > 1:
        problem = f"layer_windows {config.layer_windows} of several sizes"
    elif windows and family == "llama":
        problem = "layer_windows without qk_norm or qkv_bias"
    elif config.mlp_bias and family != "llama":
        problem = f"mlp_bias with {'qk_norm' if config.qk_norm else 'qkv_bias alone'}"
    elif config.qkv_bias != config.out_bias and family != "qwen2":
        problem = f"qkv_bias {config.qkv_bias} with out_bias {config.out_bias}"
    elif family == "llama" and config.width % config.num_heads:
        problem = f"width {config.width} that num_heads {config.num_heads} does not divide"
    if problem:
        raise ValueError(
            f"no Transformers family (llama, qwen2, qwen3) has {problem}; this model cannot be exported"
        )
    return family
