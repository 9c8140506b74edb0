"""Whether sampler and trainer agree on the policy, and what to look at when they do not.

Every ratio of the update assumes that the sampler drew from the policy the trainer computes. Their mean gap per
token, `sampler/log_prob_gap`, is rounding: about 1e-6 in float32 and up to 1e-2 in bfloat16. The trainer's side are the
old log-probs, or where those are the sampler's, those of the policy before a rollout's first optimizer step.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Any

from grpo_jax.config import Config, PretrainedModel
from grpo_jax.validation import reshaping

QUIET_STEPS = 50
"""Steps between two warnings of the same run."""


class Agreement:
    """Watches the gap over a run."""

    def __init__(self, config: Config):
        self._config, self._warned = config, -QUIET_STEPS

    def warning(self, step: int, gap: float) -> str | None:
        """What to tell the reader after this step, if anything."""
        limit = self._config.rollout.gap_warning
        # A gap that is no number is as bad as a gap can be.
        if not limit or gap <= limit or step < self._warned + QUIET_STEPS:
            return None
        self._warned = step
        causes = "".join(f"\n  - {cause}" for cause in likely_causes(self._config))
        return (
            f"step {step}: sampler and trainer disagree by {gap:.2g} per token (sampler/log_prob_gap;"
            f" rollout.gap_warning is {limit:g}). Likely causes, the likeliest first:{causes}"
        )


CUTS = ("top_k", "top_p", "min_p", "forbidden_ids")
"""Settings that leave tokens out, and all others as likely relative to each other as they are."""


def truncation(config: Config) -> str | None:
    """What a run should know that trains on samples of another distribution than the policy's: which correction applies.

    None where they are the policy's own.
    """
    correction, changed = config.loss.sampler_correction, reshaping(config.rollout)
    if not changed:
        return None
    text = f"rollouts are drawn from another distribution ({_listed(changed)}) than the trainer's: "
    if changed.keys() <= set(CUTS):
        text += "a kept token is drawn more often than the policy would, by 1 / the mass that was kept. "
    else:
        text += "tokens are drawn more or less often than the policy would. "
    if correction is None:
        return text + "loss.sampler_correction (truncate, per token) corrects for that; none is set."
    if correction.kind == "truncate":
        what = f"weighs each {correction.level} by policy / sampler, at most {correction.high:g}"
    else:
        what = (
            f"only leaves out each {correction.level} outside {correction.low:g} to {correction.high:g} of it"
        )
    return text + f"loss.sampler_correction {what}."


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, Real) else name for name, value in settings.items()
    )


def likely_causes(config: Config) -> list[str]:
    """What in this config can make sampler and trainer disagree, and what can in any."""
    causes = []
    if config.rollout.replay:
        causes.append(
            "rollout.replay: the rollouts are of another policy; update.old_log_probs sampler takes the ratios against it"
        )
    trusted = config.update.old_log_probs == "sampler"
    if trusted and config.rollout.lag:
        causes.append(
            "rollout.lag: the sampler's policy is a step old, and with update.old_log_probs sampler the trainer's is not"
        )
    if config.rollout.quantize != "none":
        causes.append(
            f"rollout.quantize is {config.rollout.quantize}: the sampler's matrices are rounded to it"
        )
    if config.model.dtype != "float32":
        causes.append(
            f"model.dtype is {config.model.dtype}: the two round differently; float32 tells how much of it"
        )
    if config.model.param_dtype != "float32":
        causes.append(f"model.param_dtype is {config.model.param_dtype}: updates are rounded to it")
    if changed := reshaping(config.rollout):
        causes.append(
            f"rollouts hold the tokens that {_listed(changed)} make likely, and the gap is theirs alone"
        )
    if isinstance(config.model, PretrainedModel) and config.model.lora_rank:
        causes.append("an engine of your own that samples without the adapters")
    causes.append("the parameters changed between sampling and the old policy's log-probabilities")
    causes.append("an engine of your own, at another temperature or of other parameters")
    if trusted:
        causes.append(
            "if it has to stay: update.old_log_probs is sampler, which takes it into every ratio; trainer does not"
        )
    elif config.loss.sampler_correction is None:
        causes.append("if it has to stay: loss.sampler_correction corrects for it")
    return causes
