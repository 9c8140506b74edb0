"""A run or a pretrained model, opened: everything that sampling from it needs, and nothing that training does."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from flax import nnx

from grpo_jax import experiment, keys
from grpo_jax.config import Config
from grpo_jax.models import loading, lora
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.tokenizers import Tokenizer, load_tokenizer
from grpo_jax.training import sharding
from grpo_jax.training.checkpoint import restore_params, saved_steps
from grpo_jax.training.policy import architecture_of, make_policy, sized_for, trainable_shapes
from grpo_jax.training.setup import tokenizer_of


class Opened(NamedTuple):
    """A model ready to sample from: `NativeEngine(graphdef, …).load(params)`.

    A run's adapters are in `params` as they trained, beside their base. `config` is the run's, None for a model that
    no run made; `step` is how many rollouts it has been trained on.
    """

    architecture: ModelConfig
    graphdef: nnx.GraphDef
    params: nnx.State
    tokenizer: Tokenizer
    config: Config | None
    step: int | None


def open_model(
    path: str | Path,
    *,
    step: int | None = None,
    chat: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Opened:
    """The policy of a run after `step` rollouts (default: its newest), or a pretrained model with its own tokenizer.

    Args:
        path: a run folder, or a model as PretrainedModel.path names one (a folder, a .gguf file, package:NAME,
            org/name@commit).
        step: rollouts, as metrics.jsonl counts them; for runs only.
        chat: wrap text prompts as a user message, for models; a run's config says what it does.
        dtype: compute dtype, for models; a run has its own.

    Raises:
        ValueError: there is no such run, model or checkpoint; names it.
    """
    if (Path(path) / "config.py").is_file():
        return _open_run(Path(path), step=step)
    if step is not None:
        raise ValueError(
            f"step: got {step}, but {path} is no run (no config.py in it), so it has no checkpoints"
        )
    architecture = loading.read_config(str(path), dtype=dtype)
    tokenizer = load_tokenizer(kind="transformers", path=str(path), chat=chat)
    graphdef, params = nnx.split(loading.load_decoder(str(path), config=architecture))
    return Opened(architecture, graphdef, params, tokenizer, None, None)


def _open_run(folder: Path, *, step: int | None) -> Opened:
    config = experiment.load(folder / "config.py")
    step = checkpoint_step(config, folder, step)
    tokenizer = tokenizer_of(config)
    architecture = sized_for(architecture_of(config.model), tokenizer)
    policy = make_policy(config.model, architecture, mesh=sharding.make_mesh(1))
    params: Any = restore_params(
        folder / "checkpoints", trainable_shapes(policy), config.warm_start.steps + step
    )
    frozen = None
    if architecture.lora:
        _, frozen = policy.initial(keys.fold(keys.run_key(config.run.seed), "parameters"))
    return Opened(architecture, policy.graphdef, lora.join(params, frozen), tokenizer, config, step)


def checkpoint_step(config: Config, folder: Path, step: int | None) -> int:
    """The wanted step, or the newest; checkpoints are numbered on from the warm start's steps."""
    numbers = saved_steps(folder / "checkpoints")
    steps = [number - config.warm_start.steps for number in numbers if number >= config.warm_start.steps]
    if not steps:
        raise ValueError(f"{folder} has no checkpoint of the policy stage yet")
    if step is not None and step not in steps:
        raise ValueError(f"step: got {step}, but {folder} keeps checkpoints of steps {steps}")
    return steps[-1] if step is None else step
