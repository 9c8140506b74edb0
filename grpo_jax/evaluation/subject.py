"""The model that is evaluated: what it is called, what it is, and how it is asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from grpo_jax.models.tokenizers import Tokenizer, TransformersTokenizer
from grpo_jax.training.opening import Opened, open_model


@dataclass(frozen=True)
class Subject:
    """An opened model, and its name for tables."""

    name: str
    folder: Path
    """Where its results go unless the reader says otherwise."""
    opened: Opened


def open_subject(
    source: str | Path,
    *,
    step: int | None = None,
    chat: bool | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Subject:
    """The run or model at `source`, as `training.opening.open_model` finds it.

    Args:
        source: a run folder, or a model in the forms of PretrainedModel.path.
        step: the checkpoint of a run; None takes the newest.
        chat: wrap text prompts as a user's message; None does what a run does, and for a model what its tokenizer can.
        dtype: compute dtype of a model; a run has its own.
    """
    opened = open_model(source, step=step, dtype=dtype)
    opened = opened._replace(tokenizer=ask(opened.tokenizer, _chat(opened) if chat is None else chat))
    name = str(source).rstrip("/")
    if opened.config is None:
        return Subject(name, Path("evaluations") / _file_name(name), opened)
    return Subject(
        f"{name}, step {opened.step}", Path(source) / "evaluations" / f"step-{opened.step}", opened
    )


def ask(tokenizer: Tokenizer, chat: bool) -> Tokenizer:
    """The tokenizer with its chat template on or off for prompts that are text."""
    if not isinstance(tokenizer, TransformersTokenizer):
        if chat:
            raise ValueError("chat: got True, but the character tokenizer has no chat template")
        return tokenizer
    if chat == tokenizer.chat:
        return tokenizer
    return TransformersTokenizer(tokenizer.tokenizer, chat=chat, stop_ids=tokenizer.stop_ids)


def _chat(opened: Opened) -> bool:
    tokenizer = opened.tokenizer
    if opened.config is not None or not isinstance(tokenizer, TransformersTokenizer):
        return getattr(tokenizer, "chat", False)
    return bool(tokenizer.tokenizer.chat_template)


def _file_name(source: str) -> str:
    """What a source is called, without the place it is in on this machine."""
    return Path(source.partition("@")[0].rpartition(":")[2]).name.removesuffix(".gguf")


def checksum(params: nnx.State) -> str:
    """A number of the parameters' bits, the same on every machine: equal for equal models."""
    return f"{int(_checksum(params)):08x}"


@jax.jit
def _checksum(params: nnx.State) -> jax.Array:
    total = jnp.uint32(0)
    for leaf in jax.tree.leaves(params):
        words = {2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
        # Whole numbers wrap around: their sum is exact, in whatever order a device takes it.
        bits = jax.lax.bitcast_convert_type(leaf, words).astype(jnp.uint32)
        total = total * jnp.uint32(1_000_003) + bits.sum(dtype=jnp.uint32)
    return total
