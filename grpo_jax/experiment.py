"""From an experiment file and command-line overrides to a checked config, and back to a file that runs again."""

import contextlib
import dataclasses
import difflib
import io
import math
import re
import runpy
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from grpo_jax.config import Config, MeshConfig, PretrainedModel
from grpo_jax.models.config import ModelConfig

AUTO = "auto"
FLAG_STYLE = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)

SHORT = {"--resume": "--run.resume=True", "--distributed": "--distributed.enabled=True"}


def load(path: str | Path) -> Config:
    """The `config` of an experiment file.

    Raises:
        ValueError: the file is missing, fails, or has no `config = Config(...)`; the message names the file.
    """
    if not Path(path).is_file():
        raise ValueError(f"experiment: no such file: {path}")
    try:
        config = runpy.run_path(str(path)).get("config")
    except Exception as error:
        raise ValueError(f"experiment: {path} failed with {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise ValueError(
            f"experiment: {path} must define `config = grpo_jax.config.Config(...)`, got {type(config).__name__}"
        )
    return config


def override(config: Config, arguments: Sequence[str], program: str) -> Config:
    """`config` with command-line flags applied; `--help` prints every field and exits.

    Raises:
        ValueError: an unknown flag or a value of the wrong type, in one line that names the flag.
    """
    config = _switch_on(config, arguments)
    arguments = [SHORT.get(argument, argument) for argument in arguments]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                Config, default=config, args=arguments, prog=program, config=FLAG_STYLE, use_underscores=True
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise ValueError(_first_sentence(complaint.getvalue())) from None


def _switch_on(section: Any, arguments: Sequence[str], prefix: str = "--") -> Any:
    """`section` with those of its optional sections that are None at their defaults, if a flag names a field of one.

    `--loss.history.window 5` alone thus turns HA-DW on; `--help` shows every section.
    """
    types = typing.get_type_hints(type(section))
    changes = {}
    for f in dataclasses.fields(section):
        value, flag = getattr(section, f.name), f"{prefix}{f.name}."
        if value is None and any(_names(a).startswith(flag) or a in ("--help", "-h") for a in arguments):
            value = next((t() for t in typing.get_args(types[f.name]) if dataclasses.is_dataclass(t)), None)
        if dataclasses.is_dataclass(value):
            value = _switch_on(value, arguments, flag)
        if value is not getattr(section, f.name):
            changes[f.name] = value
    return dataclasses.replace(section, **changes) if changes else section


def _names(argument: str) -> str:
    """A flag as the fields are called: tyro also takes hyphens for underscores."""
    return "--" + argument[2:].replace("-", "_") if argument.startswith("--") else ""


def _first_sentence(box: str) -> str:
    """The first paragraph of tyro's boxed error message, plus the nearest flag if it suggests one."""
    box = re.sub(r"\x1b\[[0-9;]*m", "", box)  # colours, on a terminal
    lines = [line.strip("│ ") for line in box.splitlines()[1:] if line[:1] not in "╭╰"]  # without the title
    rules = (
        r"^[─-]{5,}$"  # lines of "-" where the terminal has no UTF-8; there one stands under the title too
    )
    paragraphs = [p for p in re.split(rules, "\n".join(lines), flags=re.MULTILINE) if p.strip()]
    message = " ".join(paragraphs[0].split())
    suggestions = re.findall(r"^--[\w.\-]+", "\n".join(paragraphs[1:]), flags=re.MULTILINE)
    if message.startswith("Unrecognized") and suggestions:
        return f"{message} (did you mean {suggestions[0]}?)"
    return message


def validate(config: Config, *, devices: int, architecture: ModelConfig | None = None) -> None:
    """Checks that span fields; run before anything is compiled.

    Args:
        config: what to check.
        devices: devices there are.
        architecture: of a pretrained model, as read from its files; None leaves the checks against it out.

    Raises:
        ValueError: names the field, what came and what was expected.
    """
    rollout, update = config.rollout, config.update
    positive = {
        "rollout.batch_size": rollout.batch_size,
        "rollout.max_prompt_length": rollout.max_prompt_length,
        "rollout.max_completion_length": rollout.max_completion_length,
        "rollout.max_turns": rollout.max_turns,
        "update.epochs": update.epochs,
        "update.head_memory_mib": update.head_memory_mib,
        "update.sizes": update.sizes,
        "warm_start.batch_size": config.warm_start.batch_size,
        "evaluation.samples": config.evaluation.samples,
        "distributed.timeout_seconds": config.distributed.timeout_seconds,
        "checkpoint.keep": config.checkpoint.keep,
        "optimizer.learning_rate": config.optimizer.learning_rate,
        "rollout.temperature": rollout.temperature,
        "rollout.max_rounds": rollout.max_rounds,
        "rollout.slots": rollout.slots,
        "rollout.tensor": rollout.tensor,
        "update.max_skipped": update.max_skipped,
        "warm_start.optimizer.learning_rate": config.warm_start.optimizer.learning_rate,
        "optimizer.max_grad_norm": config.optimizer.max_grad_norm,
        "warm_start.optimizer.max_grad_norm": config.warm_start.optimizer.max_grad_norm,
    }
    for name, value in positive.items():
        _require(value > 0, name, value, "a positive number")
    for name, value in {
        "train.steps": config.train.steps,
        "warm_start.steps": config.warm_start.steps,
        "evaluation.every": config.evaluation.every,
        "checkpoint.every": config.checkpoint.every,
        "evaluation.problems": config.evaluation.problems,
        "evaluation.temperature": config.evaluation.temperature,
        "rollout.top_k": rollout.top_k,
        "rollout.gap_warning": rollout.gap_warning,
        "rollout.devices": rollout.devices,
        "update.mini_batch": update.mini_batch,
        "update.micro_batch": _micro_batch(config),
        "update.memory_budget_gib": update.memory_budget_gib,
        "update.head_chunk": update.head_chunk,
        "optimizer.warmup_steps": config.optimizer.warmup_steps,
        "warm_start.optimizer.warmup_steps": config.warm_start.optimizer.warmup_steps,
        "loss.kl_coef": config.loss.kl_coef,
        "loss.eps": config.loss.eps,
    }.items():
        _require(value >= 0, name, value, "0 or more")
    _require(
        rollout.group_size >= 2,
        "rollout.group_size",
        rollout.group_size,
        "at least 2: a group of one has no baseline",
    )
    _require(
        0 <= config.loss.ddof < rollout.group_size,
        "loss.ddof",
        config.loss.ddof,
        f"from 0 to below rollout.group_size = {rollout.group_size}: a standard deviation divides by their difference",
    )
    loss = config.loss
    _require(
        loss.dual_clip is None or loss.dual_clip > 1, "loss.dual_clip", loss.dual_clip, "above 1, or None"
    )
    _require(0 <= loss.clip_low < 1, "loss.clip_low", loss.clip_low, "from 0 to below 1")
    _require(loss.clip_high >= 0, "loss.clip_high", loss.clip_high, "0 or more")
    for name in ("tau_positive", "tau_negative", "ratio_cap"):
        _require(getattr(loss, name) > 0, f"loss.{name}", getattr(loss, name), "a positive number")
    if loss.history is not None:
        _require(loss.history.window > 0, "loss.history.window", loss.history.window, "a positive number")
    for name in ("b1", "b2"):
        beta = getattr(config.optimizer, name)
        _require(0 <= beta < 1, f"optimizer.{name}", beta, "from 0 to below 1")
    _require(
        math.isfinite(rollout.temperature), "rollout.temperature", rollout.temperature, "a finite number"
    )
    _require(0 < rollout.top_p <= 1, "rollout.top_p", rollout.top_p, "in (0, 1]")
    truncated = rollout.top_k > 0 or rollout.top_p < 1
    _require(
        not truncated or rollout.allow_truncated_sampling,
        "rollout.top_k/top_p",
        (rollout.top_k, rollout.top_p),
        "0 and 1.0 for training: the trainer's distribution is not truncated, so every ratio would be wrong "
        "(set rollout.allow_truncated_sampling to accept that)",
    )
    if isinstance(config.model, PretrainedModel):
        rank = config.model.lora_rank
        _require(rank >= 0, "model.lora_rank", rank, "0 or more")
        _require(
            not rank or bool(config.model.lora_targets), "model.lora_targets", (), "at least one projection"
        )
    else:
        architecture = config.model
    _require(
        rollout.devices < devices,
        "rollout.devices",
        rollout.devices,
        f"fewer than the {devices} devices there are: the update needs some too",
    )
    _require(
        max(rollout.devices, 1) % rollout.tensor == 0,
        "rollout.tensor",
        rollout.tensor,
        f"a divisor of rollout.devices = {rollout.devices}, and 1 without",
    )
    data, fsdp, tensor = mesh_shape(config.mesh, devices=devices - rollout.devices)
    if architecture:
        _check_architecture(architecture, length=rollout.max_prompt_length + rollout.max_completion_length)
        _check_splits(config.mesh, architecture)
    mini_batch = groups_per_step(config)
    _require(
        rollout.batch_size % mini_batch == 0,
        "update.mini_batch",
        update.mini_batch,
        f"a divisor of rollout.batch_size = {rollout.batch_size}",
    )
    shards = data * fsdp
    _require(
        not rollout.lag or shards * tensor == 1 or rollout.devices > 0,
        "rollout.lag",
        rollout.lag,
        f"0 on a mesh of {shards * tensor} devices without rollout.devices: two programs at once on several devices may "
        "wait for each other for ever",
    )
    _require(
        _micro_batch(config) % shards == 0,
        "update.micro_batch",
        update.micro_batch,
        f"a multiple of mesh.data x mesh.fsdp = {shards}",
    )
    rows = rows_per_device(config, shards=shards)
    _require(
        update.layout != "group" or rows % rollout.group_size == 0,
        "update.layout",
        update.layout,
        f"plain or auto: a micro-batch has {rows} sequences per device, not whole groups of "
        f"rollout.group_size = {rollout.group_size}",
    )
    _require(
        update.layout != "packed" or fsdp * tensor == 1,
        "update.layout",
        update.layout,
        f"plain or auto: packing moves tokens between rows, which mesh.fsdp = {fsdp} and mesh.tensor = {tensor} split",
    )
    _require(
        update.old_log_probs == "trainer" or config.loss.sampler_correction is None,
        "update.old_log_probs",
        update.old_log_probs,
        "trainer with loss.sampler_correction, which weighs the trainer's against the sampler's",
    )
    _require(
        not update.offload_reference or loss.kl_coef > 0,
        "update.offload_reference",
        True,
        "False: with loss.kl_coef = 0 there is no reference",
    )
    seed = config.run.seed
    _require(-(2**63) <= seed < 2**63, "run.seed", seed, "a whole number of 64 bits")
    names = [reward.name for reward in config.reward.functions]
    _require(bool(names), "reward.functions", names, "at least one reward")
    success = config.evaluation.success
    if success and success not in names:
        close = difflib.get_close_matches(success, names, 1)
        _require(
            False,
            "evaluation.success",
            success,
            f"one of reward.functions {names}" + (f" ({close[0]}?)" if close else ""),
        )


def _check_architecture(model: ModelConfig, *, length: int) -> None:
    for name in ("num_layers", "width", "mlp_width", "num_heads", "num_kv_heads", "head_dim"):
        _require(getattr(model, name) > 0, f"model.{name}", getattr(model, name), "a positive number")
    _require(
        length <= model.max_position,
        "rollout.max_prompt_length + rollout.max_completion_length",
        length,
        f"at most model.max_position = {model.max_position}",
    )
    _require(
        model.num_heads % model.num_kv_heads == 0,
        "model.num_kv_heads",
        model.num_kv_heads,
        f"a divisor of model.num_heads = {model.num_heads}",
    )
    _require(
        model.head_dim % 2 == 0,
        "model.head_dim",
        model.head_dim,
        "an even number: rotary embeddings pair its halves",
    )


def _check_splits(mesh: MeshConfig, model: ModelConfig) -> None:
    """An axis that splits some dimensions leaves the others whole; one that splits none only repeats the work."""
    splits = {
        "fsdp": {"model.width": model.width},
        "tensor": {"model.num_heads": model.num_heads, "model.mlp_width": model.mlp_width},
    }
    for axis, dimensions in splits.items():
        size = getattr(mesh, axis)
        listed = " or ".join(f"{name} = {value}" for name, value in dimensions.items())
        _require(
            any(value % size == 0 for value in dimensions.values()),
            f"mesh.{axis}",
            size,
            f"a divisor of {listed}",
        )


def groups_per_step(config: Config) -> int:
    """Prompts of an optimizer step."""
    return config.update.mini_batch or config.rollout.batch_size


def mini_batches(config: Config) -> int:
    """Optimizer steps of one pass over a rollout."""
    return config.rollout.batch_size // groups_per_step(config)


def micro_batches(config: Config) -> int:
    """Forward and backward passes of an optimizer step."""
    size = _micro_batch(config)
    return -(-_sequences(config) // size) if size else 1


def rows_per_device(config: Config, *, shards: int) -> int:
    """Sequences of a micro-batch on each of `shards` devices, padding rows included: shares are equal."""
    return -(-_sequences(config) // (micro_batches(config) * shards))


def _micro_batch(config: Config) -> int:
    """The size asked for; an automatic one is found later, and until then is the whole mini-batch."""
    return 0 if config.update.micro_batch == AUTO else config.update.micro_batch


def _sequences(config: Config) -> int:
    """Sequences of an optimizer step."""
    return groups_per_step(config) * config.rollout.group_size


def mesh_shape(mesh: MeshConfig, *, devices: int, hosts: int = 1) -> tuple[int, int, int]:
    """Sizes of the data, fsdp and tensor axes on so many devices of so many hosts.

    Raises:
        ValueError: a size is no number of devices, there are not so many, or a host would be left without work.
    """
    for name in ("fsdp", "tensor"):
        _require(getattr(mesh, name) >= 1, f"mesh.{name}", getattr(mesh, name), "1 or more")
    _require(mesh.data >= 0, "mesh.data", mesh.data, "0 or more")
    inner = mesh.fsdp * mesh.tensor
    _require(
        inner <= devices,
        "mesh.fsdp/mesh.tensor",
        (mesh.fsdp, mesh.tensor),
        f"a product of at most the {devices} devices there are",
    )
    data = mesh.data or devices // inner
    _require(
        data * inner <= devices,
        "mesh.data",
        mesh.data,
        f"at most {devices // inner}: there are {devices} devices, and each copy takes {inner}",
    )
    _require(
        hosts == 1 or data * inner == devices,
        "mesh.data",
        mesh.data,
        f"{devices / inner:g}: a run on several hosts uses all of their {devices} devices",
    )
    return data, mesh.fsdp, mesh.tensor


def _require(holds: bool, field: str, got: Any, expected: str) -> None:
    if not holds:
        raise ValueError(f"{field}: got {got!r}, expected {expected}")


def to_source(config: Config) -> str:
    """The config as an experiment file: every field spelled out, so that the file alone repeats the run."""
    return (
        '"""The resolved config of this run; `grpo-jax train` on this file runs it again."""\n\n'
        "from grpo_jax.config import *  # noqa: F403\n"
        "from grpo_jax.models.config import *  # noqa: F403\n\n"
        f"config = {_literal(config, 0)}\n"
    )


def _literal(value: Any, depth: int) -> str:
    pad, end = "    " * (depth + 1), "    " * depth
    if dataclasses.is_dataclass(value):
        inner = "".join(
            f"{pad}{f.name}={_literal(getattr(value, f.name), depth + 1)},\n"
            for f in dataclasses.fields(value)
        )
        return f"{type(value).__name__}(\n{inner}{end})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_literal(v, depth + 1)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        inner = "".join(f"{pad}{_literal(item, depth + 1)},\n" for item in value)
        return f"(\n{inner}{end})" if value else "()"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"  # inf is no name
    return repr(value)


def differences(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted names of the fields in which two configs differ, with both values."""
    if type(old) is not type(new) or not dataclasses.is_dataclass(old):
        return {} if old == new else {prefix: (old, new)}
    found: dict[str, tuple[Any, Any]] = {}
    for f in dataclasses.fields(old):
        name = f"{prefix}.{f.name}" if prefix else f.name
        found |= differences(getattr(old, f.name), getattr(new, f.name), name)
    return found
