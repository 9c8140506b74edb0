"""From the loss section of a config to an objective: the one place where names of losses become functions."""

from functools import partial

from grpo_jax.config import DriftFixConfig, HistoryConfig, LossConfig, SamplerCorrectionConfig
from grpo_jax.losses import advantages, aggregation, dfpo, hadw, kl, ratios, sampler, surrogates
from grpo_jax.losses import objective as objectives
from grpo_jax.resolve import resolve


def objective_of(config: LossConfig, *, max_length: int) -> objectives.Objective:
    """The objective a config describes; `max_length` is the longest completion the sampler may produce.

    Raises:
        ValueError: names the field that is wrong or does not go with another.
    """
    return objectives.Objective(
        advantage=partial(
            advantages.advantage,
            baseline=getattr(advantages, config.baseline),
            scale=advantages.no_scale if config.scale == "none" else getattr(advantages, config.scale),
            ddof=config.ddof,
            eps=config.eps,
        ),
        aggregation=resolve(config.aggregation, _aggregations(max_length), "loss.aggregation"),
        ratio=getattr(ratios, config.ratio),
        surrogate=resolve(config.surrogate, _surrogates(config), "loss.surrogate"),
        kl=getattr(kl, config.kl),
        kl_coef=config.kl_coef,
        entropy_coef=config.entropy_coef,
        history=_history(config.history),
        transform=_drift_fix(config.drift_fix, surrogate=config.surrogate, ratio=config.ratio),
        sampler_correction=_sampler_correction(config.sampler_correction),
        mask_truncated=config.mask_truncated,
    )


def _aggregations(max_length: int) -> dict[str, aggregation.Rule]:
    names = ("sequence", "sequence_sum", "token", "batch_token", "balanced", "balanced_mass", "balanced_unit")
    return {name: getattr(aggregation, name) for name in names} | {
        "constant": aggregation.constant(max_length=max_length)
    }


def _surrogates(config: LossConfig) -> dict[str, surrogates.Surrogate]:
    return {
        "clip": partial(
            surrogates.clip,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            symmetric=config.symmetric,
        ),
        "cispo": partial(surrogates.cispo, ratio_cap=config.ratio_cap),
        "reinforce": surrogates.reinforce,
        "sapo": partial(surrogates.sapo, tau_positive=config.tau_positive, tau_negative=config.tau_negative),
    }


def _history(config: HistoryConfig | None) -> hadw.HADW | None:
    if config is None:
        return None
    update = {
        "soft": partial(hadw.soft, eta=config.eta, history=config.window, eta_min=config.eta_min),
        "window": partial(hadw.window, window=config.window),
        "ema": partial(hadw.ema, window=config.window),
        "fixed": hadw.fixed,
    }[config.update]()
    return hadw.HADW(
        update=update,
        initial=config.initial,
        scale=config.scale,
        anchor=config.anchor,
        reward_range=config.reward_range,
    )


def _drift_fix(config: DriftFixConfig | None, *, surrogate: str, ratio: str) -> dfpo.DriftFix | None:
    if config is None:
        return None
    if surrogate != "reinforce":
        raise ValueError(
            f"loss.surrogate: got {surrogate!r}, expected 'reinforce' with loss.drift_fix (DFPO's is w A log π)"
        )
    if ratio not in ("sequence", "sequence_product"):
        raise ValueError(
            f"loss.ratio: got {ratio!r}, expected 'sequence' or 'sequence_product' with loss.drift_fix, which transforms "
            "one ratio per sequence"
        )
    return dfpo.DriftFix(
        transform=getattr(dfpo, config.transform),
        cancel_under_aggregation=config.cancel_under_aggregation,
        stop_gradient=config.stop_gradient,
        global_scale=config.global_scale,
    )


def _sampler_correction(config: SamplerCorrectionConfig | None) -> sampler.SamplerCorrection | None:
    if config is None:
        return None
    level = getattr(ratios, config.level)
    if config.kind == "truncate":
        return partial(sampler.truncate, level=level, cap=config.high)
    return partial(sampler.band, level=level, low=config.low, high=config.high)
