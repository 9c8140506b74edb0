"""A random Llama on disk, for tests that train, resume and export pretrained models."""

from dataclasses import replace
from pathlib import Path

from flax import nnx

from grpo_jax.config import Config, PretrainedModel, TokenizerConfig, TrainConfig, WarmStartConfig
from grpo_jax.models import exporting
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.tokenizers import CharacterTokenizer
from tests.tiny import MODEL, tiny

LORA = {"lora_rank": 2, "lora_alpha": 16.0, "lora_targets": ("query", "out", "down")}


def write_base(folder: Path, *, multiple: int = 1) -> Path:
    """The checkpoint, its vocabulary a multiple of `multiple`, with the character tokenizer beside it."""
    tokenizer = CharacterTokenizer()
    config = replace(MODEL, vocab_size=tokenizer.vocab_size + -tokenizer.vocab_size % multiple)
    exporting.export_model(folder, Decoder(config, rngs=nnx.Rngs(7)), tokenizer)
    return folder


def experiment(folder: Path, base: Path, *, steps: int = 2, **model) -> Config:
    """The tiny experiment on that checkpoint: GRPO alone, with a KL term, the tokenizer that of the model."""
    config = tiny(folder, model=PretrainedModel(path=str(base), remat="none", **model))
    return replace(
        config,
        tokenizer=TokenizerConfig(kind="transformers"),
        warm_start=WarmStartConfig(steps=0),
        train=TrainConfig(steps=steps),
    )
