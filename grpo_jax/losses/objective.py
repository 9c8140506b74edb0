"""The one form of every loss here, and what is computed when.

    loss = − Σ_i Σ_t  w_it · ℓ_it   +   regularisers

ℓ is the per-token surrogate: it carries the gradient and depends on its own sequence only. w is the token
weight: it comes from advantages, lengths and group ids, carries no gradient, and holds every division over a
batch. So the loss itself is a plain sum: micro-batches, devices and packing may split a group, never a
sequence, and give the same gradient.

    once per rollout:     `advantages`  (and the HA-DW history)
    once per mini-batch:  `weights`, and for DFPO `group_constants`, with their sums over groups and devices
    per micro-batch:      `loss`, differentiated

Every part of an `Objective` is a function; `recipes.py` names the compositions.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from grpo_jax.losses import aggregation, dfpo, hadw, ratios, sampler, surrogates
from grpo_jax.losses.advantages import Advantage, advantage
from grpo_jax.losses.aggregation import SIGN_BLIND, Rule
from grpo_jax.losses.arrays import as_float, check, check_shapes, check_values, masked
from grpo_jax.losses.diagnostics import Totals, reward_metrics, token_means, token_reports
from grpo_jax.losses.groups import Groups, group_rows
from grpo_jax.losses.kl import KL, k2


@dataclass(frozen=True)
class Objective:
    """A member of the family. Fields are functions, with their options bound by `functools.partial`.

    Attributes:
      advantage: (rewards, groups) -> advantages.
      aggregation: the rule that gives each sequence its token weight ω.
      ratio: what the importance ratio is taken over.
      surrogate: ℓ.
      kl: per-token KL estimate used as a loss, with `kl_coef`; a coefficient of 0 needs no reference
        log-probs.
      entropy_coef: weight of the mean token entropy, which is maximised.
      regulariser_aggregation: the rule for KL and entropy; None takes the sign-blind counterpart of
        `aggregation`.
      history: HA-DW.
      transform: DFPO.
      sampler_correction: trainer against sampler.
      mask_truncated: sequences that hit the length limit keep their reward's place in the baseline and lose
        their tokens. For whoever makes the loss mask (`overlong.mask_truncated`); nothing here reads it.
    """

    advantage: Advantage = advantage
    aggregation: Rule = aggregation.sequence
    ratio: ratios.Ratio = ratios.token
    surrogate: surrogates.Surrogate = surrogates.clip
    kl: KL = k2
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    regulariser_aggregation: Rule | None = None
    history: hadw.HADW | None = None
    transform: dfpo.DriftFix | None = None
    sampler_correction: sampler.SamplerCorrection | None = None
    mask_truncated: bool = False

    def __post_init__(self):
        check(
            self.aggregation is not aggregation.constant,
            "aggregation: constant needs its max_length, as in constant(max_length=1024)",
        )
        check(
            self.transform is None or self.ratio not in (ratios.token, ratios.sequence_token),
            "ratio: DFPO transforms one ratio per sequence, so it takes sequence or sequence_product",
        )


class Weights(NamedTuple):
    """Per sequence: ω of the policy term, ω of the regularisers, and whether the row is not padding."""

    policy: Float[Array, "N"]
    regulariser: Float[Array, "N"]
    counted: Bool[Array, "N"]


def init_history(objective: Objective) -> hadw.HistoryState | None:
    """The HA-DW state before the first batch, for the train state; None without HA-DW."""
    return None if objective.history is None else hadw.init(objective.history)


def advantages(
    objective: Objective,
    *,
    rewards: Shaped[Array, "N"],
    group_ids: Int[Array, "N"],
    num_groups: int | None = None,
    scored: Bool[Array, "N"] | None = None,
    history: hadw.HistoryState | None = None,
    batch_mean: Float[Array, ""] | None = None,
    axis_name: str | None = None,
) -> tuple[Float[Array, "N"], hadw.HistoryState | None, dict[str, Float[Array, ""]]]:
    """The advantages of one rollout, the history after it, and metrics.

    Args:
      rewards: [N] summed reward of each response.
      group_ids: [N] in [0, num_groups), −1 on padding rows.
      num_groups: static; needed under jit.
      scored: [N] False where no reward could be given. Such a row is as if never sampled: give it group id −1
        in everything that follows, as in jnp.where(scored, group_ids, -1).
      history: HA-DW's state; advanced once per rollout, whatever becomes of the update.
      batch_mean: HA-DW's y_t, where a filter has already removed part of the batch from `rewards`.
      axis_name: the device axis, where rows are sharded.
    """
    check_shapes(rewards.shape[:1], rewards=rewards, group_ids=group_ids, scored=scored)
    check(
        (objective.history is None) or (history is not None),
        "history: the objective uses HA-DW; pass init_history(objective) or the state it returned last",
    )
    groups = group_rows(group_ids, num_groups, axis_name)
    if scored is not None:
        groups = groups.only(scored)
    check_values(
        jnp.isfinite(rewards) | ~groups.counted, "rewards: expected finite values where scored", rewards
    )
    rewards = jnp.where(groups.counted, as_float(rewards), 0.0)
    values = objective.advantage(rewards, groups)
    reward_range = (0.0, 1.0) if objective.history is None else objective.history.reward_range
    metrics = reward_metrics(rewards, groups, reward_range=reward_range)
    if objective.history is not None:
        values, history, difficulty = hadw.reweigh(
            objective.history,
            history,
            advantages=values,
            rewards=rewards,
            groups=groups,
            batch_mean=batch_mean,
        )
        metrics |= difficulty
    return values, history, metrics


def weights(
    objective: Objective,
    *,
    advantages: Float[Array, "N"],
    loss_mask: Bool[Array, "N T"],
    group_ids: Int[Array, "N"],
    num_groups: int | None = None,
    axis_name: str | None = None,
) -> Weights:
    """The token weights of one optimizer mini-batch: everything the loss is divided by.

    Args:
      advantages: [N] those that enter the surrogate.
      loss_mask: [N, T] the very mask that multiplies the loss: lengths are counted from it.
      group_ids: [N] in [0, num_groups), −1 on padding rows; the mini-batch is a whole number of groups.
      num_groups: static; needed under jit.
      axis_name: the device axis, where rows are sharded.
    """
    check(loss_mask.ndim == 2, f"loss_mask: expected shape [N, T], got {list(loss_mask.shape)}")
    check_shapes(loss_mask.shape[:1], advantages=advantages, group_ids=group_ids)
    groups = group_rows(group_ids, num_groups, axis_name)
    lengths = _lengths(loss_mask, groups)
    advantages = jax.lax.stop_gradient(as_float(advantages))
    policy = objective.aggregation
    regulariser = objective.regulariser_aggregation or SIGN_BLIND.get(policy, policy)

    def omega(rule: Rule) -> Float[Array, "N"]:
        return jnp.where(lengths > 0, rule(advantages, lengths, groups.sum, groups.total), 0.0)

    return Weights(omega(policy), omega(regulariser), groups.counted)


def group_constants(
    objective: Objective,
    *,
    log_probs: Float[Array, "N T"],
    old_log_probs: Float[Array, "N T"],
    loss_mask: Bool[Array, "N T"],
    advantages: Float[Array, "N"],
    weights: Weights,
    group_ids: Int[Array, "N"],
    num_groups: int | None = None,
    sampler_log_probs: Float[Array, "N T"] | None = None,
    axis_name: str | None = None,
) -> dfpo.GroupConstants | None:
    """DFPO's w̃ for the whole mini-batch, from the current log-probs; None without DFPO.

    Call it before the micro-batches, outside of what is differentiated, and give each micro-batch its rows of
    the [N] arrays. `sampler_log_probs` is needed for sampler_correction.
    """
    if objective.transform is None:
        return None
    groups = group_rows(group_ids, num_groups, axis_name)
    terms = _policy_terms(
        objective, log_probs, old_log_probs, loss_mask, advantages, weights, sampler_log_probs
    )
    constants, pullback = dfpo.fix_drift(
        objective.transform,
        ratios=terms.ratio[:, 0],
        advantages=as_float(advantages),
        token_weights=weights.policy,
        lengths=_lengths(loss_mask, groups),
        groups=groups,
    )
    cotangents = None
    if not objective.transform.stop_gradient:
        per_sequence = jnp.sum(terms.surrogate, axis=1, where=terms.mask)
        cotangents = pullback(weights.policy * per_sequence)
    return jax.lax.stop_gradient(dfpo.GroupConstants(constants, cotangents))


def loss(
    objective: Objective,
    *,
    log_probs: Float[Array, "n T"],
    old_log_probs: Float[Array, "n T"],
    loss_mask: Bool[Array, "n T"],
    advantages: Float[Array, "n"],
    weights: Weights,
    entropy: Float[Array, "n T"] | None = None,
    ref_log_probs: Float[Array, "n T"] | None = None,
    sampler_log_probs: Float[Array, "n T"] | None = None,
    group_constants: dfpo.GroupConstants | None = None,
) -> tuple[Float[Array, ""], Totals]:
    """−Σ w·ℓ + kl_coef Σ w·KL − entropy_coef Σ w·H over these rows: a plain sum, nothing is divided here.

    Args:
      log_probs: [n, T] of the policy being differentiated.
      old_log_probs: [n, T] of the policy before this rollout's updates.
      loss_mask: [n, T] tokens that train; values under a False may be anything.
      advantages: [n].
      weights: these rows of `weights(...)`.
      entropy: [n, T] of the policy's distribution; needed for entropy_coef.
      ref_log_probs: [n, T]; needed for kl_coef.
      sampler_log_probs: [n, T]; needed for sampler_correction.
      group_constants: these rows of `group_constants(...)`; needed for DFPO.
    Returns: the loss, to be summed over micro-batches and devices, and `Totals` of the metrics.
    """
    shape = log_probs.shape
    check_shapes(
        shape,
        old_log_probs=old_log_probs,
        loss_mask=loss_mask,
        entropy=entropy,
        ref_log_probs=ref_log_probs,
        sampler_log_probs=sampler_log_probs,
    )
    check_shapes(shape[:1], advantages=advantages, weights=weights.policy)
    for argument, value, needed_for, needed in (
        ("ref_log_probs", ref_log_probs, "kl_coef", objective.kl_coef != 0),
        ("entropy", entropy, "entropy_coef", objective.entropy_coef != 0),
        ("group_constants", group_constants, "transform", objective.transform is not None),
    ):
        check(
            value is not None or not needed, f"{argument}: needed by the objective's {needed_for}; got None"
        )

    terms = _policy_terms(
        objective, log_probs, old_log_probs, loss_mask, advantages, weights, sampler_log_probs
    )
    mask, surrogate = terms.mask, terms.surrogate
    policy_weights = jnp.where(mask, weights.policy[:, None], 0.0)
    regulariser_weights = jnp.where(mask, weights.regulariser[:, None], 0.0)

    if group_constants is not None:
        surrogate = group_constants.weights[:, None] * surrogate
    policy_loss = -jnp.sum(policy_weights * surrogate)
    if group_constants is not None and group_constants.cotangents is not None:
        own_ratio = terms.ratio[:, 0]
        policy_loss -= jnp.sum(group_constants.cotangents * (own_ratio - jax.lax.stop_gradient(own_ratio)))

    total = policy_loss
    to_reference = log_gap = None
    if ref_log_probs is not None:
        to_reference = masked(ref_log_probs, mask) - terms.log_probs
        if objective.kl_coef != 0:
            total += objective.kl_coef * jnp.sum(regulariser_weights * objective.kl(to_reference))
    if entropy is not None:
        entropy = masked(entropy, mask)
        if objective.entropy_coef != 0:
            total -= objective.entropy_coef * jnp.sum(regulariser_weights * entropy)
    if sampler_log_probs is not None:
        log_gap = masked(old_log_probs, mask) - masked(sampler_log_probs, mask)

    reports = terms.reports | token_reports(
        log_ratio=terms.log_ratio,
        ratio=terms.ratio,
        to_reference=to_reference,
        entropy=entropy,
        log_gap=log_gap,
    )
    return total, Totals(
        means=token_means(reports, mask),
        sums={"loss/policy": jax.lax.stop_gradient(policy_loss)},
        maxima={"ratio/max": jax.lax.stop_gradient(jnp.max(jnp.where(mask, terms.ratio, 0.0), initial=0.0))},
    )


class _PolicyTerms(NamedTuple):
    mask: Bool[Array, "n T"]
    log_probs: Float[Array, "n T"]
    log_ratio: Float[Array, "n T"]
    ratio: Float[Array, "n T"]
    surrogate: Float[Array, "n T"]
    reports: surrogates.Reports


def _policy_terms(
    objective: Objective,
    log_probs: Float[Array, "n T"],
    old_log_probs: Float[Array, "n T"],
    loss_mask: Bool[Array, "n T"],
    advantages: Float[Array, "n"],
    weights: Weights,
    sampler_log_probs: Float[Array, "n T"] | None,
) -> _PolicyTerms:
    """ρ and ℓ, the sampler's correction included, without any weight."""
    mask = loss_mask & weights.counted[:, None]
    log_probs, old_log_probs = masked(log_probs, mask), masked(old_log_probs, mask)
    log_ratio = log_probs - old_log_probs
    ratio = objective.ratio(log_ratio, mask)
    surrogate, reports = objective.surrogate(ratio, log_probs, as_float(advantages)[:, None])
    if objective.ratio is ratios.sequence_product:
        reports = reports | {"ratio/clamped_fraction": ratios.is_clamped(log_ratio, mask)}
    if objective.sampler_correction is not None:
        check(
            sampler_log_probs is not None,
            "sampler_log_probs: needed by the objective's sampler_correction; got None",
        )
        log_gap = jax.lax.stop_gradient(old_log_probs - masked(sampler_log_probs, mask))
        factor, corrections = objective.sampler_correction(log_gap, mask)
        surrogate, reports = factor * surrogate, reports | corrections
    return _PolicyTerms(mask, log_probs, log_ratio, ratio, surrogate, reports)


def _lengths(loss_mask: Bool[Array, "N T"], groups: Groups) -> Float[Array, "N"]:
    """T_i, counted with the mask that multiplies the loss; 0 on padding rows."""
    lengths = jnp.sum(loss_mask, axis=-1, dtype=float)
    return jnp.where(groups.counted, lengths, 0.0)
