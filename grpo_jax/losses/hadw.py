"""HA-DW: history-aware difficulty weighting (Your Group-Relative Advantage Is Biased, arXiv 2601.08521).

A group's mean is a poor guess of how hard its prompt is: hard prompts that show a success look easier than
they are. The anchor C is a belief about the policy's success rate, carried from batch to batch, and each
advantage is multiplied by

    Φ_i = λ · exp( − sgn(A_i) · (p̂_g − C) )

so that on a prompt below the anchor right answers weigh more and wrong ones less, and the reverse above it.

`HistoryState` is a pytree of arrays: carry it in the train state and checkpoint it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.losses.arrays import check, divide
from grpo_jax.losses.groups import Groups


class HistoryState(NamedTuple):
    """What the anchor remembers: its last `memory` posterior beliefs and batch means, newest last.

    The initial belief counts as a belief. Slots not yet reached hold 0 and are never read.
    """

    beliefs: Float[Array, "memory"]
    batch_means: Float[Array, "memory"]
    num_beliefs: Int[Array, ""]
    num_batches: Int[Array, ""]


class Update(NamedTuple):
    """How a belief meets a new batch mean y: how far back it looks, and `rule(prior, state, y) -> (posterior,
    η)`.

    η is the weight of y in the posterior.
    """

    memory: int
    rule: Callable[
        [Float[Array, ""], HistoryState, Float[Array, ""]], tuple[Float[Array, ""], Float[Array, ""]]
    ]


def soft(*, eta: float = 1.0, history: int = 10, eta_min: float = 0.05) -> Update:
    """C⁺ = (1−η_t) C⁻ + η_t y, η_t = clip(η σ_t, eta_min, 1), σ_t the std of the last `history` beliefs.

    The paper's rule, section 3.1, where eta_min is 0.

    Equal beliefs give σ = 0, which is where it starts and which it can then never leave; hence the floor.
    """

    def rule(prior, state, y):
        recent = jnp.arange(history) >= history - state.num_beliefs
        count = jnp.sum(recent)
        mean = jnp.sum(state.beliefs, where=recent) / count
        spread = jnp.sqrt(jnp.sum((state.beliefs - mean) ** 2, where=recent) / count)
        step = jnp.clip(eta * spread, eta_min, 1.0)
        return (1 - step) * prior + step * y, step

    return Update(history, rule)


def window(*, window: int = 10) -> Update:
    """C⁺ = the mean of the last `window` batch means, this one included."""

    def rule(prior, state, y):
        earlier = jnp.arange(window) >= jnp.maximum(window - state.num_batches, 1)
        count = jnp.sum(earlier) + 1
        return (jnp.sum(state.batch_means, where=earlier) + y) / count, 1 / count

    return Update(window, rule)


def ema(*, window: int = 10) -> Update:
    """C⁺ = ((h−1)/h) C⁻ + y/h, h = `window`."""

    def rule(prior, state, y):
        step = jnp.asarray(1 / window, prior.dtype)
        return (1 - step) * prior + step * y, step

    return Update(1, rule)


def fixed() -> Update:
    """C⁺ = C⁻: a constant anchor."""
    return Update(1, lambda prior, state, y: (prior, jnp.zeros_like(prior)))


@dataclass(frozen=True)
class HADW:
    """The method's options.

    Attributes:
      update: `soft`, `window`, `ema` or `fixed`, called with their options.
      initial: belief before the first batch; None takes the first batch's mean.
      scale: λ.
      anchor: "prior" weighs with the belief before this batch (the paper), "posterior" with the one after it
        (the authors' code).
      reward_range: the rewards' lowest and highest value, mapped to [0, 1] first; the paper only treats [0,
        1].
    """

    update: Update = field(default_factory=window)
    initial: float | None = None
    scale: float = 1.3
    anchor: Literal["prior", "posterior"] = "prior"
    reward_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self):
        check(
            self.anchor in ("prior", "posterior"),
            f'anchor: expected "prior" or "posterior", got {self.anchor!r}',
        )
        check(
            self.reward_range[0] < self.reward_range[1],
            f"reward_range: expected (lowest, highest), got {self.reward_range}",
        )


class Anchors(NamedTuple):
    """The belief before and after a batch, and the weight η that batch had."""

    prior: Float[Array, ""]
    posterior: Float[Array, ""]
    eta: Float[Array, ""]


def init(options: HADW, *, beliefs: Sequence[float] = ()) -> HistoryState:
    """The state before the first batch.

    `beliefs` is a history to start from, oldest first; its last is the initial belief.
    """
    if not beliefs and options.initial is not None:
        beliefs = (options.initial,)
    memory = options.update.memory
    kept = jnp.asarray(list(beliefs)[-memory:], float)
    return HistoryState(
        beliefs=jnp.zeros(memory).at[memory - len(kept) :].set(kept),
        batch_means=jnp.zeros(memory),
        num_beliefs=jnp.asarray(len(kept), jnp.int32),
        num_batches=jnp.asarray(0, jnp.int32),
    )


def update(options: HADW, state: HistoryState, batch_mean: Float[Array, ""]) -> tuple[HistoryState, Anchors]:
    """Advance the anchor by one batch.

    `batch_mean` is y_t, the mean reward in [0, 1] over all responses of the batch, those of zero-variance
    groups included, before any dynamic-sampling filter.
    """
    y = batch_mean.astype(state.beliefs.dtype)
    prior = jnp.where(state.num_beliefs == 0, y, state.beliefs[-1])
    before = HistoryState(
        beliefs=state.beliefs.at[-1].set(prior),
        batch_means=state.batch_means,
        num_beliefs=jnp.maximum(state.num_beliefs, 1),
        num_batches=state.num_batches,
    )
    posterior, eta = options.update.rule(prior, before, y)
    after = HistoryState(
        beliefs=_push(before.beliefs, posterior),
        batch_means=_push(before.batch_means, y),
        num_beliefs=jnp.minimum(before.num_beliefs + 1, options.update.memory),
        num_batches=jnp.minimum(before.num_batches + 1, options.update.memory),
    )
    return after, Anchors(prior, posterior, eta)


def to_unit_range(rewards: Float[Array, "..."], reward_range: tuple[float, float]) -> Float[Array, "..."]:
    """Rewards mapped from `reward_range` to [0, 1]."""
    low, high = reward_range
    return (rewards - low) / (high - low)


def phi(
    advantages: Float[Array, "N"],
    success: Float[Array, "N"],
    anchor: Float[Array, ""] | float,
    *,
    scale: float = 1.3,
) -> Float[Array, "N"]:
    """Φ_i = λ exp(−sgn(A_i) sgn(p̂_g − C) |p̂_g − C|) (arXiv 2601.08521, section 3.2).

    Args:
      advantages: [N].
      success: [N] p̂_g, the mean raw reward of the row's group, in [0, 1].
      anchor: C.
      scale: λ.
    """
    return scale * jnp.exp(-jnp.sign(advantages) * (success - anchor))


def reweigh(
    options: HADW,
    state: HistoryState,
    *,
    advantages: Float[Array, "N"],
    rewards: Float[Array, "N"],
    groups: Groups,
    batch_mean: Float[Array, ""] | None = None,
) -> tuple[Float[Array, "N"], HistoryState, dict[str, Float[Array, ""]]]:
    """Φ_i A_i, the state after this batch, and the `hadw/` metrics.

    `batch_mean` replaces the mean raw reward of these rows where a filter has already removed some of the
    batch.
    """
    unit = to_unit_range(rewards, options.reward_range)
    responses = groups.total(groups.counted)
    if batch_mean is None:
        y = divide(groups.total(unit), responses)
    else:
        y = to_unit_range(batch_mean, options.reward_range)
    advanced, anchors = update(options, state, y)
    if batch_mean is None:  # a batch in which nothing was scored says nothing
        advanced = jax.tree.map(lambda new, old: jnp.where(responses > 0, new, old), advanced, state)
    success = groups.mean(unit)
    anchor = anchors.prior if options.anchor == "prior" else anchors.posterior
    factors = phi(advantages, success, anchor.astype(advantages.dtype), scale=options.scale)
    metrics = {
        "hadw/anchor_prior": anchors.prior,
        "hadw/anchor_posterior": anchors.posterior,
        "hadw/eta": anchors.eta,
    }
    signed = advantages != 0
    for name, side in (("hard", success < anchor), ("easy", success > anchor)):
        here = (side & signed).astype(factors.dtype)
        metrics[f"hadw/phi_mean_{name}"] = divide(groups.total(factors * here), groups.total(here))
    return factors * advantages, advanced, metrics


def _push(buffer: Float[Array, "memory"], value: Float[Array, ""]) -> Float[Array, "memory"]:
    return jnp.append(buffer[1:], value)
