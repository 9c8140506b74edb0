"""The policy of a run: its architecture, what of it trains, and its parameters before the first step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
from flax import nnx
from jax.sharding import Mesh

from grpo_jax.config import PretrainedModel
from grpo_jax.models import loading, lora
from grpo_jax.models.axes import ShardingRule
from grpo_jax.models.config import LoraConfig, ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.training import sharding


class Policy(NamedTuple):
    """A decoder without its parameters, and where they come from.

    `initial` is a function of a random key: (trainable, frozen), each array where `sharding` wants it. Frozen is None
    without LoRA. With it, calling `initial` again is how a resumed run gets its frozen base back, bit for bit.
    """

    config: ModelConfig
    graphdef: nnx.GraphDef
    sharding: ShardingRule
    initial: Callable[[jax.Array], tuple[Any, Any]]


def architecture_of(model: ModelConfig | PretrainedModel) -> ModelConfig:
    """The architecture a config describes, read from the checkpoint if there is one.

    Raises:
        ValueError: there is no model at `model.path`, or this decoder cannot be it.
    """
    if isinstance(model, ModelConfig):
        return model
    if not model.path:
        raise ValueError(
            "model.path: got '', expected a folder, a .gguf file, package:NAME or org/name@commit"
        )
    adapters = LoraConfig(rank=model.lora_rank, alpha=model.lora_alpha, targets=model.lora_targets)
    return replace(
        loading.read_config(model.path, dtype=model.dtype, param_dtype=model.param_dtype),
        lora=adapters if model.lora_rank else None,
        remat=model.remat,
    )


def sized_for(architecture: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """`architecture` with an embedding for every id of the tokenizer: it may have more, and 0 takes the tokenizer's.

    Raises:
        ValueError: it has fewer.
    """
    have, need = architecture.vocab_size, tokenizer.vocab_size
    if 0 < have < need:
        raise ValueError(
            f"model.vocab_size: got {have}, expected at least the tokenizer's {need} "
            "(or 0; a pretrained model needs the tokenizer it was trained with)"
        )
    return replace(architecture, vocab_size=have or need)


def make_policy(model: ModelConfig | PretrainedModel, config: ModelConfig, *, mesh: Mesh) -> Policy:
    """The policy that begins as `model`, whose architecture is `config`."""
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    rule = sharding.rule_of(mesh, config)
    if isinstance(model, PretrainedModel):

        def initial(key: jax.Array) -> tuple[Any, Any]:
            decoder = loading.load_decoder(model.path, config=replace(config, lora=None), sharding=rule)
            if config.lora:
                decoder = lora.attach(decoder, config.lora, rngs=nnx.Rngs(params=key), sharding=rule)
            return _none_if_empty(lora.split(decoder)[1:])
    else:

        def random(key: jax.Array):
            return lora.split(Decoder(config, rngs=nnx.Rngs(params=key)))[1:]

        def initial(key: jax.Array) -> tuple[Any, Any]:
            return _none_if_empty(sharding.build(random, rule, key))

    return Policy(config, graphdef, rule, initial)


def _none_if_empty(parts: tuple[nnx.State, nnx.State]) -> tuple[nnx.State, nnx.State | None]:
    trainable, frozen = parts
    return trainable, frozen if len(frozen) else None


def trainable_shapes(policy: Policy) -> nnx.State:
    """Shapes and dtypes of what trains, for restoring it."""
    return lora.split(nnx.eval_shape(lambda: Decoder(policy.config, rngs=nnx.Rngs(0))))[1]
