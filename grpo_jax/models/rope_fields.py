"""The rotary part of a Transformers config.json: base and scaling, in the spellings of versions 4 and 5."""

import math
from collections.abc import Mapping
from typing import Any

from grpo_jax.models.config import RopeScaling


def read(fields: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling from rope_scaling and rope_theta, or from rope_parameters; no entry is ignored."""
    rope = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    theta = rope.pop("rope_theta", None) or fields.get("rope_theta") or 10_000.0
    kinds = rope.pop("rope_type", None), rope.pop("type", None)
    kind = kinds[0] or kinds[1] or "default"
    if rope.pop("partial_rotary_factor", None) not in (None, 1.0):
        raise ValueError(
            "config.json partial_rotary_factor is set; only full rotary embeddings are supported"
        )
    if kind not in _READERS:
        raise ValueError(f"config.json rope_type is {kind!r}; expected one of {', '.join(_READERS)}")
    scaling = _READERS[kind](rope, fields.get("max_position_embeddings"))
    if rope:
        raise ValueError(
            f"config.json has {next(iter(rope))!r} in its {kind} rope scaling; that is not supported"
        )
    return float(theta), scaling


def write(scaling: RopeScaling | None) -> dict[str, Any]:
    """The entries of rope_parameters (or rope_scaling), without the base."""
    if scaling is None:
        return {"rope_type": "default"}
    fields: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        fields["original_max_position_embeddings"] = scaling.original_max_position
    if scaling.kind == "llama3":
        fields |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        fields |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        if scaling.attention_factor is not None:
            fields["attention_factor"] = scaling.attention_factor
    return fields


def _default(rope: dict[str, Any], max_position: int | None) -> None:
    del rope, max_position


def _linear(rope: dict[str, Any], max_position: int | None) -> RopeScaling:
    del max_position
    return RopeScaling(kind="linear", factor=_take(rope, "factor"))


def _llama3(rope: dict[str, Any], max_position: int | None) -> RopeScaling:
    return RopeScaling(
        kind="llama3",
        factor=_take(rope, "factor"),
        original_max_position=_take(rope, "original_max_position_embeddings", max_position),
        low_freq_factor=_take(rope, "low_freq_factor"),
        high_freq_factor=_take(rope, "high_freq_factor"),
    )


def _yarn(rope: dict[str, Any], max_position: int | None) -> RopeScaling:
    original = _take(rope, "original_max_position_embeddings", max_position)
    factor = _take(rope, "factor", max_position and max_position / original)
    if rope.pop("truncate", True) is not True:
        raise ValueError("config.json truncate is False in its yarn rope scaling; only True is supported")
    mscale, mscale_all = rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
    attention = rope.pop("attention_factor", None)
    if attention is None and mscale and mscale_all:
        attention = _sharpening(factor, mscale) / _sharpening(factor, mscale_all)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=_take(rope, "beta_fast", 32.0),
        beta_slow=_take(rope, "beta_slow", 1.0),
        attention_factor=attention,
    )


_READERS = {"default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def _take(rope: dict[str, Any], name: str, default: float | None = None) -> Any:
    value = rope.pop(name, None)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"config.json has rope scaling without {name}")
    return value


def _sharpening(factor: float, mscale: float) -> float:
    """YaRN's mscale, as DeepSeek's configs parameterise it."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
