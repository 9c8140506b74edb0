"""Settings that change nothing, because another one leaves them out: a run names them before its first step.

They are no errors. An ablation that turns off what they belong to is one flag, and should stay one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from grpo_jax.config import Config


class Belonging(NamedTuple):
    """Settings that act only together with another one."""

    names: tuple[str, ...]
    """Dotted names of the settings."""
    act: Callable[[Config], Any]
    """Whether they do, in this config. Asked only where its sections exist."""
    to: str
    """What they act with, as one would set it."""


BELONGINGS = (
    Belonging(("data.few_shot_answer",), lambda c: c.data.few_shot, "data.few_shot"),
    Belonging(
        ("data.prompt",),
        lambda c: getattr(c.data, "messages_field", None) is None,
        "data.messages_field None",
    ),
    Belonging(("model.lora_alpha", "model.lora_targets"), lambda c: c.model.lora_rank, "model.lora_rank"),
    Belonging(
        ("rollout.environment_options", "rollout.max_turns"),
        lambda c: c.rollout.environment,
        "rollout.environment",
    ),
    Belonging(("rollout.max_rounds",), lambda c: c.rollout.dynamic_sampling, "rollout.dynamic_sampling True"),
    Belonging(
        ("loss.clip_low", "loss.clip_high", "loss.dual_clip", "loss.symmetric"),
        lambda c: c.loss.surrogate == "clip",
        "loss.surrogate clip",
    ),
    Belonging(("loss.ratio_cap",), lambda c: c.loss.surrogate == "cispo", "loss.surrogate cispo"),
    Belonging(
        ("loss.tau_positive", "loss.tau_negative"),
        lambda c: c.loss.surrogate == "sapo",
        "loss.surrogate sapo",
    ),
    Belonging(
        ("loss.ddof", "loss.eps"), lambda c: c.loss.scale != "none", "a loss.scale that divides by something"
    ),
    Belonging(("loss.kl",), lambda c: c.loss.kl_coef, "loss.kl_coef above 0"),
    Belonging(
        ("loss.history.eta", "loss.history.eta_min"),
        lambda c: c.loss.history.update == "soft",
        "loss.history.update soft (loss.history itself is on)",
    ),
    Belonging(
        ("loss.history.window",),
        lambda c: c.loss.history.update != "fixed",
        "a loss.history.update that looks back (loss.history itself is on)",
    ),
    Belonging(
        ("loss.sampler_correction.low",),
        lambda c: c.loss.sampler_correction.kind == "band",
        "loss.sampler_correction.kind band (the correction itself is on)",
    ),
    Belonging(
        ("update.memory_budget_gib",), lambda c: c.update.micro_batch == "auto", "update.micro_batch auto"
    ),
    Belonging(
        ("warm_start.batch_size", "warm_start.optimizer"),
        lambda c: c.warm_start.steps,
        "warm_start.steps",
    ),
)


def unused(config: Config) -> list[str]:
    """A line for settings that have other values than their defaults and change nothing, and what would let them act."""
    lines = []
    for names, act, to in BELONGINGS:
        changed = [name for name in names if _is_changed(config, name)]
        if changed and not act(config):
            lines.append(f"{', '.join(changed)}: no effect in this run; it takes {to}")
    return lines


def _is_changed(config: Config, name: str) -> bool:
    """Whether a setting is there, and another than the default of its section."""
    value, default = config, Config()
    for part in name.split("."):
        if not hasattr(value, part):  # a section that is None, or another kind of data or model
            return False
        if type(default) is not type(value):
            default = type(value)()
        value, default = getattr(value, part), getattr(default, part)
    return value != default
