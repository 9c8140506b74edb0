"""A decoder as a folder Transformers loads, or its adapters as a folder PEFT loads.

Weights are written shard by shard from one parameter slice at a time. Tied embeddings are stored once.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from grpo_jax.models import families, lora
from grpo_jax.models.checkpoint_files import INDEX
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.names import TENSORS, Slot, slots
from grpo_jax.models.tokenizers import CharacterTokenizer, Tokenizer, TransformersTokenizer

SHARD_BYTES = 2 * 2**30
"""Largest safetensors file, except for a single tensor that is larger."""


def export_model(folder: Path, decoder: Decoder, tokenizer: Tokenizer, *, temperature: float = 1.0) -> None:
    """Config, weights (adapters merged), tokenizer, chat template and generation config, in a new folder.

    Args:
      folder: where to; must not hold files yet.
      decoder: the policy. A head narrower or wider than the tokenizer is written as it is.
      tokenizer: written beside it, with its chat template and every stop id as eos.
      temperature: written into the generation config, so that the model is sampled as it was trained.
    """
    folder = _new(folder)
    decoder = lora.merge(decoder)
    _write_json(folder / "config.json", families.to_transformers(decoder.config) | _token_ids(tokenizer))
    _write_weights(folder, decoder)
    export_tokenizer(folder, tokenizer, temperature=temperature)


def export_adapter(folder: Path, decoder: Decoder, *, base: str) -> None:
    """The adapters alone, in PEFT's format, in a new folder; `base` is what they belong on."""
    config = decoder.config.lora
    if config is None:
        raise ValueError("this model has no LoRA adapters to export; export the model instead")
    folder = _new(folder)
    modules = {target: TENSORS[f"blocks.{target}.kernel"].split(".")[-2] for target in config.targets}
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules.values()),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", fields)
    tensors = {}
    for target in config.targets:
        adapter = getattr(decoder.blocks, target).adapter
        a, b = _on_host(adapter.a[...]), _on_host(adapter.b[...])
        for slot in slots(f"blocks.{target}.kernel", decoder.config):
            module = "base_model.model." + slot.name.removesuffix(".weight")
            tensors[module + ".lora_A.weight"] = np.ascontiguousarray(a[slot.layer].T)
            tensors[module + ".lora_B.weight"] = np.ascontiguousarray(b[slot.layer].T)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def export_tokenizer(folder: Path, tokenizer: Tokenizer, *, temperature: float) -> None:
    """Tokenizer, chat template and generation config."""
    _as_transformers(tokenizer).save_pretrained(folder)
    generation = _token_ids(tokenizer) | {"do_sample": True, "temperature": temperature}
    _write_json(folder / "generation_config.json", generation)


def model_card(
    *,
    title: str,
    base: str | None,
    resolved_config: str,
    results: Sequence[Mapping[str, Any]],
) -> str:
    """README.md of an exported model.

    Args:
      title: its heading.
      base: hub id the run started from, or None for a model from scratch.
      resolved_config: the run's config as text, whole.
      results: rows of the held-out results; the first row's keys are the columns.
    """
    header = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [grpo, rlvr, grpo_jax]",
    ]
    header += [f"base_model: {base}"] if base else []
    lines = [
        *header,
        "---",
        "",
        f"# {title}",
        "",
        "Trained by group-relative policy optimisation with grpo_jax",
    ]
    lines[-1] += f", starting from {base}." if base else ", from scratch."
    if results:
        columns = list(results[0])
        lines += ["", "## Held-out results", "", _row(columns), _row("---" for _ in columns)]
        lines += [_row(result[column] for column in columns) for result in results]
    lines += ["", "## Resolved config", "", "```", resolved_config.rstrip(), "```", ""]
    return "\n".join(lines)


def _row(cells) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _new(folder: Path) -> Path:
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already holds something; expected a new or empty folder to export to")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_json(file: Path, fields: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(fields, indent=2) + "\n")


def _write_weights(folder: Path, decoder: Decoder) -> None:
    parameters = {".".join(path): variable for path, variable in nnx.to_flat_state(nnx.state(decoder))}
    shards = list(_shards(parameters, decoder))
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    names = ["model.safetensors"] if len(shards) == 1 else names
    for file, shard in zip(names, shards, strict=True):
        tensors = {slot.name: _tensor(slot, parameters[slot.parameter][...]) for slot in shard}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {slot.name: file for file, shard in zip(names, shards, strict=True) for slot in shard}
        total = sum(variable[...].nbytes for variable in parameters.values())
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(parameters: Mapping[str, nnx.Param], decoder: Decoder) -> Iterator[list[Slot]]:
    """Checkpoint tensors in files of at most SHARD_BYTES."""
    shard, size = [], 0
    for name, variable in parameters.items():
        for slot in slots(name, decoder.config):
            nbytes = variable[...].nbytes // (1 if slot.layer is None else decoder.config.num_layers)
            if shard and size + nbytes > SHARD_BYTES:
                yield shard
                shard, size = [], 0
            shard.append(slot)
            size += nbytes
    yield shard


def _tensor(slot: Slot, parameter: jax.Array) -> np.ndarray:
    array = _on_host(parameter if slot.layer is None else parameter[slot.layer])
    return np.ascontiguousarray(array.T if slot.transposed else array)


def _on_host(array: jax.Array) -> np.ndarray:
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental.multihost_utils import process_allgather

    return process_allgather(array, tiled=True)


def _token_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    stops = list(tokenizer.stop_ids)
    bos = tokenizer.bos_id if isinstance(tokenizer, CharacterTokenizer) else tokenizer.tokenizer.bos_token_id
    fields = {"bos_token_id": bos, "eos_token_id": stops if len(stops) > 1 else stops[0]}
    return fields | {"pad_token_id": tokenizer.pad_id}


def _as_transformers(tokenizer: Tokenizer):
    if isinstance(tokenizer, TransformersTokenizer):
        return tokenizer.tokenizer
    return _characters()


def _characters():
    """The character tokenizer as a Transformers one: the same ids for prompts, decoded the same way."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Fast
    from transformers import PreTrainedTokenizerFast

    special = ("<pad>", "<bos>", "<eos>")
    tokens = (*special, *CharacterTokenizer.alphabet, *(f"<0x{byte:02X}>" for byte in range(256)))
    vocabulary = {token: id for id, token in enumerate(tokens)}
    fast = Fast(models.BPE(vocabulary, merges=[], byte_fallback=True))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fast.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    fast.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=int(1e30),
    )
