"""The family by name. Each recipe is the whole method: read it to learn what the method is.

Every recipe starts from `grpo` or says why not, and takes overrides of any `Objective` field, so methods
combine:

    ha_dw(dapo())                              difficulty weighting on DAPO
    gspo(aggregation=aggregation.balanced)     balanced aggregation with sequence ratios
    dfpo(balanced(), cancel_under_aggregation=True)
"""

from dataclasses import replace
from functools import partial
from typing import Any

from grpo_jax.losses import aggregation, ratios, surrogates
from grpo_jax.losses.advantages import (
    advantage,
    batch_advantage_std,
    group_mean,
    group_std,
    leave_one_out,
    no_scale,
)
from grpo_jax.losses.dfpo import DriftFix, Transform, min_replace
from grpo_jax.losses.hadw import HADW
from grpo_jax.losses.objective import Objective


def grpo(*, clip_low: float = 0.2, clip_high: float = 0.2, **overrides: Any) -> Objective:
    """GRPO (DeepSeekMath, arXiv 2402.03300, eq. 3 and section 4.1.2).

    Rewards centred and scaled within the group; the clipped ratio of each token; the mean over a sequence's
    tokens, then over sequences, then over groups. The paper adds a KL loss (eq. 4, which is k3): kl=k3,
    kl_coef=0.04.
    """
    return Objective(
        **{
            "advantage": partial(advantage, baseline=group_mean, scale=group_std),
            "ratio": ratios.token,
            "surrogate": partial(surrogates.clip, clip_low=clip_low, clip_high=clip_high),
            "aggregation": aggregation.sequence,
        }
        | overrides
    )


def dr_grpo(*, max_length: int, **overrides: Any) -> Objective:
    """Dr. GRPO (arXiv 2503.20783, section 3.2): GRPO without its two divisions that bias it.

    No division by the group's std, which favours prompts that are too easy or too hard; a constant in place
    of each sequence's own length, which favours long wrong answers. `max_length` is that constant, in tokens.
    """
    return grpo(
        **{
            "advantage": partial(advantage, baseline=group_mean, scale=no_scale),
            "aggregation": aggregation.constant(max_length=max_length),
        }
        | overrides
    )


def dapo(*, clip_low: float = 0.2, clip_high: float = 0.28, **overrides: Any) -> Objective:
    """DAPO (arXiv 2503.14476, eq. 8): GRPO with a higher upper clip (eq. 10) and the mean over all tokens
    (eq. 12).

    Its other two parts act on the rollout: dynamic sampling (eq. 11), and the length penalty and the masking
    of truncated completions of `overlong.py` (eq. 13).
    """
    return grpo(
        clip_low=clip_low,
        clip_high=clip_high,
        **{"aggregation": aggregation.batch_token, "mask_truncated": True} | overrides,
    )


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, **overrides: Any) -> Objective:
    """GSPO (arXiv 2507.18071, eq. 5): GRPO with one ratio per sequence, the geometric mean of its tokens'
    (eq. 7).

    A whole sequence is clipped or not, and the band is far narrower as the mean moves far less than a token.
    """
    return grpo(clip_low=clip_low, clip_high=clip_high, **{"ratio": ratios.sequence} | overrides)


def gspo_token(*, clip_low: float = 3e-4, clip_high: float = 4e-4, **overrides: Any) -> Objective:
    """GSPO-token (arXiv 2507.18071, eq. 13 and 14): GSPO's values, but each token's gradient is its own."""
    return gspo(clip_low=clip_low, clip_high=clip_high, **{"ratio": ratios.sequence_token} | overrides)


def cispo(*, ratio_cap: float = 5.0, **overrides: Any) -> Objective:
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5): the ratio is a capped constant and multiplies log π.

    Where GRPO's clip drops a token's gradient, here every token keeps one. Mean over all tokens of a group.
    """
    return grpo(
        **{
            "surrogate": partial(surrogates.cispo, ratio_cap=ratio_cap),
            "aggregation": aggregation.token,
        }
        | overrides
    )


def rloo(**overrides: Any) -> Objective:
    """RLOO (arXiv 2402.14740): REINFORCE on whole sequences with the mean of the others as
    baseline.

    Against GRPO: no ratio and no clip, no std, and a sequence's log-probability is the sum over its tokens.
    """
    return grpo(
        **{
            "advantage": partial(advantage, baseline=leave_one_out, scale=no_scale),
            "surrogate": surrogates.reinforce,
            "aggregation": aggregation.sequence_sum,
        }
        | overrides
    )


def reinforce_pp(**overrides: Any) -> Objective:
    """REINFORCE++ with a group baseline (arXiv 2501.03262): GRPO scaled by one std for the whole batch.

    The std is that of the centred rewards, so that no group is blown up for agreeing. Mean over all tokens;
    the paper adds a KL loss: kl=k2, kl_coef=...
    """
    return grpo(
        **{
            "advantage": partial(advantage, baseline=group_mean, scale=batch_advantage_std),
            "aggregation": aggregation.batch_token,
        }
        | overrides
    )


def sapo(*, tau_positive: float = 1.0, tau_negative: float = 1.05, **overrides: Any) -> Objective:
    """SAPO (arXiv 2511.20347): GRPO with a sigmoid gate around ratio 1 in place of the clip.

    The gradient fades instead of stopping, faster for negative advantages.
    """
    surrogate = partial(surrogates.sapo, tau_positive=tau_positive, tau_negative=tau_negative)
    return grpo(**{"surrogate": surrogate} | overrides)


def balanced(*, rule: aggregation.Rule = aggregation.balanced_mass, **overrides: Any) -> Objective:
    """Balanced Aggregation (arXiv 2605.04077): GRPO whose token mean is taken within each sign of the
    advantage.

    Token means couple a side's weight to its length, sequence means weigh a long sequence's tokens less; this
    does neither. The default rule is the paper's on binary rewards and balances the sides' mass on graded
    ones, where the paper is silent.
    """
    return grpo(**{"aggregation": rule} | overrides)


def ha_dw(base: Objective, options: HADW | None = None) -> Objective:
    """HA-DW (arXiv 2601.08521, section 3) on any `base`: advantages weighed by the prompt's difficulty
    against history.

    Against the base: right answers to prompts below the anchor count more and wrong ones less, and the
    reverse above it. The run carries a `HistoryState` (`init_history`).
    """
    return replace(base, history=options or HADW())


def dfpo(
    base: Objective,
    *,
    transform: Transform = min_replace,
    ratio: ratios.Ratio = ratios.sequence_product,
    **options: Any,
) -> Objective:
    """DFPO (arXiv 2604.13088v1) on any `base`: sequence ratios transformed within the group, no clipping.

    Against the base: ℓ = sg[w̃_i] A_i log π_it, so that the gradient on a token which all responses share
    cancels. That needs a token weight equal across a group (`token`, `batch_token`, `constant`,
    `sequence_sum`), or cancel_under_aggregation=True. `options` are those of `DriftFix`.
    """
    return replace(
        base,
        ratio=ratio,
        surrogate=surrogates.reinforce,
        transform=DriftFix(transform=transform, **options),
    )
