"""Checks of a config that span its fields, before anything is compiled."""

import difflib
import math
from numbers import Integral, Real
from typing import Any

from grpo_jax import amounts
from grpo_jax.config import Config, MeshConfig, OptimizerConfig, PretrainedModel, RolloutConfig
from grpo_jax.config.types import check_types
from grpo_jax.models.config import ModelConfig


def validate(config: Config, *, devices: int, architecture: ModelConfig | None = None) -> None:
    """Checks that span fields; run before anything is compiled.

    Args:
        config: what to check.
        devices: devices there are.
        architecture: of a pretrained model, as read from its files; None leaves the checks against it out.

    Raises:
        ValueError: names the field, what came and what was expected.
    """
    check_types(config)
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
        "rollout.temperature": rollout.temperature,
        "rollout.max_rounds": rollout.max_rounds,
        "rollout.slots": rollout.slots,
        "rollout.tensor": rollout.tensor,
        "update.max_skipped": update.max_skipped,
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
        "rollout.gap_warning": rollout.gap_warning,
        "rollout.devices": rollout.devices,
        "update.mini_batch": update.mini_batch,
        "update.micro_batch": amounts.micro_batch(config),
        "update.memory_budget_gib": update.memory_budget_gib,
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
    for name in ("kl_coef", "entropy_coef"):
        _require(math.isfinite(getattr(loss, name)), f"loss.{name}", getattr(loss, name), "a finite number")
    _check_optimizer(config.optimizer, "optimizer")
    _check_optimizer(config.warm_start.optimizer, "warm_start.optimizer")
    evaluation = config.evaluation
    for name, temperature in {
        "rollout.temperature": rollout.temperature,
        "evaluation.temperature": evaluation.temperature,
    }.items():
        _require(math.isfinite(temperature), name, temperature, "a finite number")
    _require(
        evaluation.temperature > 0 or evaluation.samples == 1,
        "evaluation.samples",
        evaluation.samples,
        "1 with evaluation.temperature = 0: all samples are the same",
    )
    _check_draws(rollout)
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
    for name, off in {"lag": 0, "devices": 0, "record": False}.items():
        value = getattr(rollout, name)
        _require(
            not rollout.replay or value == off,
            f"rollout.{name}",
            value,
            f"{off} with rollout.replay, which trains on what was sampled before",
        )
    mini_batch = amounts.groups_per_step(config)
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
        amounts.micro_batch(config) % shards == 0,
        "update.micro_batch",
        update.micro_batch,
        f"a multiple of mesh.data x mesh.fsdp = {shards}",
    )
    whole = rollout.group_size * shards
    _require(
        update.layout != "group" or amounts.micro_batch(config) % whole == 0,
        "update.micro_batch",
        update.micro_batch,
        f"with update.layout group a multiple of {whole}: whole groups of rollout.group_size = {rollout.group_size} on "
        f"each of mesh.data x mesh.fsdp = {shards}",
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


DRAWS_THE_POLICY = {
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "forbidden_ids": (),
}
"""Settings of a rollout with the values at which its tokens are drawn from the policy's own distribution."""


def reshaping(rollout: RolloutConfig) -> dict[str, Any]:
    """The settings by which tokens are drawn from another distribution than the policy's, none if there is none."""
    values = {name: getattr(rollout, name) for name in DRAWS_THE_POLICY}
    return {name: value for name, value in values.items() if (value or 0) != (DRAWS_THE_POLICY[name] or 0)}


def _check_draws(rollout: RolloutConfig) -> None:
    """How tokens are drawn and what ends a completion."""
    bias, forbidden, texts = rollout.logit_bias, rollout.forbidden_ids, rollout.stop_strings
    for name, holds, expected in (
        ("top_k", rollout.top_k >= 0, "0 or more"),
        ("top_p", 0 < rollout.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= rollout.min_p <= 1, "in [0, 1]"),
        ("repetition_penalty", 0 < rollout.repetition_penalty < math.inf, "a positive number"),
        ("forbidden_ids", all(map(_is_id, forbidden)), "token ids, whole numbers of 0 or more"),
        (
            "logit_bias",
            all(_is_id(id) and isinstance(value, Real) and value < math.inf for id, value in bias.items()),
            "a number below infinity for each token id, a whole number of 0 or more",
        ),
        ("stop_strings", all(isinstance(text, str) and text for text in texts), "texts that are not empty"),
    ):
        _require(holds, f"rollout.{name}", getattr(rollout, name), expected)
    both = sorted(set(bias) & set(forbidden))
    _require(not both, "rollout.logit_bias", dict(bias), f"no token of rollout.forbidden_ids: {both}")
    changed = reshaping(rollout)
    _require(
        not changed or rollout.allow_truncated_sampling,
        f"rollout.{'/'.join(changed)}",
        next(iter(changed.values())) if len(changed) == 1 else tuple(changed.values()),
        f"{', '.join(repr(DRAWS_THE_POLICY[name]) for name in changed)} for training: the trainer's distribution is the "
        "policy's own, so every ratio would be wrong (set rollout.allow_truncated_sampling to accept that)",
    )


def _is_id(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and value >= 0


def _check_optimizer(options: OptimizerConfig, section: str) -> None:
    """What is no finite number here would make parameters such, whatever the gradients."""
    for name in ("learning_rate", "max_grad_norm"):
        value = getattr(options, name)
        _require(value > 0, f"{section}.{name}", value, "a positive number")
    for name in ("warmup_steps", "eps", "weight_decay"):
        value = getattr(options, name)
        _require(value >= 0, f"{section}.{name}", value, "0 or more")
    for name in ("learning_rate", "eps", "weight_decay"):
        value = getattr(options, name)
        _require(math.isfinite(value), f"{section}.{name}", value, "a finite number")
    for name in ("b1", "b2"):
        beta = getattr(options, name)
        _require(0 <= beta < 1, f"{section}.{name}", beta, "from 0 to below 1")


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
