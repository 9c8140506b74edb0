"""The objective."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class HistoryConfig:
    """HA-DW: a belief about the policy's success rate reweighs advantages by difficulty (arXiv 2601.08521)."""

    update: Literal["soft", "window", "ema", "fixed"] = "window"
    """How the belief meets a new batch mean."""
    window: int = 10
    """Batch means (window), time constant (ema) or past beliefs (soft) looked back on."""
    eta: float = 1.0
    """soft: factor of the beliefs' standard deviation in the step size."""
    eta_min: float = 0.05
    """soft: smallest step size; at 0 equal beliefs can never move again."""
    initial: float | None = None
    """Belief before the first batch; None takes the first batch's mean."""
    scale: float = 1.3
    """Lambda, the factor on every weight."""
    anchor: Literal["prior", "posterior"] = "prior"
    """Weigh with the belief before this batch (the paper) or after it (the authors' code)."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest summed reward, mapped to [0, 1] first."""


@dataclass(frozen=True)
class DriftFixConfig:
    """DFPO: sequence weights transformed inside a group so that shared tokens' gradients cancel (arXiv 2604.13088v1)."""

    transform: Literal["min_replace", "orth_proj", "none"] = "min_replace"
    """How a group's sequence ratios are transformed."""
    cancel_under_aggregation: bool = False
    """Transform ratio x token weight, so that the sum cancels under rules that weigh a group's sequences differently."""
    stop_gradient: bool = True
    """Hold the transformed ratios constant; False is the paper's ablation."""
    global_scale: bool = False
    """One transform over the mini-batch in place of the group's; the paper's other ablation."""


@dataclass(frozen=True)
class SamplerCorrectionConfig:
    """Correction for a sampler whose log-probabilities are not the trainer's."""

    kind: Literal["truncate", "band"] = "truncate"
    """Truncated importance weights, or a mask outside a band."""
    level: Literal["token", "sequence"] = "token"
    """Per token, or by the sequence's geometric mean."""
    low: float = 0.5
    """band: smallest ratio that trains."""
    high: float = 2.0
    """Largest weight (truncate) or largest ratio that trains (band)."""


@dataclass(frozen=True)
class LossConfig:
    """The objective: -sum(token weight x surrogate), plus regularisers. Names are those of grpo_jax.losses."""

    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """What is subtracted from a reward."""
    scale: Literal["group_std", "batch_std", "batch_advantage_std", "none"] = "group_std"
    """What a centred reward is divided by."""
    ddof: int = 0
    """Delta degrees of freedom of the standard deviation (TRL and verl use 1)."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    aggregation: str = "balanced"
    """sequence, sequence_sum, token, batch_token, constant, balanced, balanced_mass, balanced_unit, or module:attribute."""
    surrogate: str = "clip"
    """clip, cispo, reinforce, sapo, or module:attribute."""
    ratio: Literal["token", "sequence", "sequence_token", "sequence_product"] = "token"
    """What the importance ratio is taken over; sequence is GSPO's, sequence_product DFPO's."""
    clip_low: float = 0.2
    """clip: the ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """clip: the ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = None
    """clip: with a negative advantage the surrogate is at least dual_clip x advantage; None for none."""
    symmetric: bool = False
    """clip: drop the min, so that a ratio outside the band loses its gradient whatever the advantage's sign."""
    ratio_cap: float = 5.0
    """cispo: largest weight of a token."""
    tau_positive: float = 1.0
    """sapo: temperature of the gate for positive advantages."""
    tau_negative: float = 1.05
    """sapo: temperature of the gate for negative advantages."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy; 0 runs no reference model at all."""
    kl: Literal["k1", "k2", "k3"] = "k2"
    """KL estimator used as the loss; k2's gradient is that of KL(policy || reference)."""
    entropy_coef: float = 0.0
    """Weight of the mean token entropy, which is maximised."""
    mask_truncated: bool = False
    """Drop the tokens of completions that hit the length limit; their reward stays in the baseline."""
    history: HistoryConfig | None = None
    """HA-DW; None for none."""
    drift_fix: DriftFixConfig | None = None
    """DFPO; None for none. Takes surrogate reinforce and ratio sequence or sequence_product."""
    sampler_correction: SamplerCorrectionConfig | None = None
    """Correction for sampler/trainer mismatch; None for none."""
