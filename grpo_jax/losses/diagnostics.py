"""Numbers that say what an update is doing, and what to conclude from each.

Those of a rollout or a mini-batch are functions here of per-sequence arrays and `Groups`, and are the same on
every device. Those of tokens are gathered by `objective.loss` in `Totals`. A "mixed" group has advantages of
both signs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from grpo_jax.losses.arrays import as_float, check_values, divide
from grpo_jax.losses.groups import Groups
from grpo_jax.losses.kl import k3


class Totals(NamedTuple):
    """Metrics before division: totals travel with their counts, and are divided once all parts have met.

    Parts may be micro-batches or devices, cut anyhow. `means` maps a name to (total, count), `sums` a name to
    a total that is its own value, `maxima` a name to the largest value.
    """

    means: dict[str, tuple[Float[Array, "*parts"], Float[Array, "*parts"]]]
    sums: dict[str, Float[Array, "*parts"]]
    maxima: dict[str, Float[Array, "*parts"]]

    def merge(self, other: "Totals") -> "Totals":
        """Both parts as one."""
        return Totals(
            means=jax.tree.map(jnp.add, self.means, other.means),
            sums=jax.tree.map(jnp.add, self.sums, other.sums),
            maxima=jax.tree.map(jnp.maximum, self.maxima, other.maxima),
        )

    def collapse(self) -> "Totals":
        """The leading axis, over parts, as one: what `lax.scan` stacked."""
        return self._reduce(lambda x: x.sum(0), lambda x: x.max(0))

    def psum(self, axis_name: str | None) -> "Totals":
        """All devices of the axis as one; without an axis there is nothing to do."""
        if axis_name is None:
            return self
        return self._reduce(
            lambda x: jax.lax.psum(x, axis_name),
            lambda x: jax.lax.pmax(x, axis_name),
        )

    def finalize(self) -> dict[str, Float[Array, "*parts"]]:
        """Name to value. A mean over nothing is 0.

        `ratio/ess` = (Σρ)² / (n Σρ²) is the share of tokens an unweighted sample of the same variance would
        need: 1 on-policy; well below, a few tokens decide the update.
        """
        values = {name: divide(*pair) for name, pair in self.means.items()} | self.sums | self.maxima
        if "ratio/square" in values:
            values["ratio/ess"] = divide(values["ratio/mean"] ** 2, values.pop("ratio/square"))
        return values

    def _reduce(self, add: Callable[[Array], Array], largest: Callable[[Array], Array]) -> "Totals":
        return Totals(
            means=jax.tree.map(add, self.means),
            sums=jax.tree.map(add, self.sums),
            maxima=jax.tree.map(largest, self.maxima),
        )


def token_reports(
    *,
    log_ratio: Float[Array, "n T"],
    ratio: Float[Array, "n T"],
    to_reference: Float[Array, "n T"] | None = None,
    entropy: Float[Array, "n T"] | None = None,
    log_gap: Float[Array, "n T"] | None = None,
) -> dict[str, Float[Array, "n T"]]:
    """What every objective reports per token; a quantity without its input has no key.

    - `ratio/max`, `ratio/ess`: 1 on the first update of a rollout, or old log-probs are not the trainer's
    own. An ess well
      below 1 afterwards: a few tokens decide the update, reuse the rollout less.
    - `kl/old`: how far the updates have moved the policy since the rollout, by k3. It should be small and
    start at 0. - `kl/ref`: KL to the reference, by k3, from `to_reference` = ref_log_probs − log_probs. Grows
    with training; a jump is
      a policy leaving the reference's language.
    - `entropy/mean`: falling to 0 means all responses become the same and no group is mixed any more.
    - `sampler/log_prob_gap`: mean |old − sampler|. Above rounding (1e-2 in bfloat16), sampler and trainer
    disagree on the
      model, the temperature or the truncation, and every ratio is off by that much.
    - `clip/low_fraction`, `clip/high_fraction` (from the surrogate): tokens that lost their gradient. Many:
    the steps are
      too large for the number of updates per rollout; one side only: the policy is pushed in that direction.
    - `loss/policy`: about 0 on the first update when advantages are centred, which is right and says nothing;
    watch it
      move within a rollout.
    """
    reports = {"kl/old": k3(-log_ratio), "ratio/mean": ratio, "ratio/square": ratio**2}
    if to_reference is not None:
        reports["kl/ref"] = k3(to_reference)
    if entropy is not None:
        reports["entropy/mean"] = entropy
    if log_gap is not None:
        reports["sampler/log_prob_gap"] = jnp.abs(log_gap)
    return reports


def token_means(
    values: dict[str, Shaped[Array, "n T"]], mask: Bool[Array, "n T"]
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """(total, count) over valid tokens of each value."""
    count = jnp.sum(mask, dtype=jnp.float32)
    return {
        name: (jnp.sum(jax.lax.stop_gradient(as_float(value)), where=mask), count)
        for name, value in values.items()
    }


def reward_metrics(
    rewards: Float[Array, "N"], groups: Groups, *, reward_range: tuple[float, float] = (0.0, 1.0)
) -> dict[str, Float[Array, ""]]:
    """How the rollout was judged.

    - `reward/mean`: over scored responses. The number to raise, on samples at the training temperature.
    - `groups/mixed_fraction`: share of prompts whose responses were not all judged alike. Only these teach;
    near 0 the
      step is nearly empty whatever its size.
    - `groups/all_right`, `groups/all_wrong`: share of prompts where every response reached the best or the
    worst reward.
      Many all right: the data is used up. Many all wrong: it is too hard, or the reward does not see the
      answers.
    """
    lowest, highest = groups.min(rewards), groups.max(rewards)
    return {
        "reward/mean": divide(groups.total(rewards), groups.total(groups.counted)),
        "groups/mixed_fraction": groups.mean_over_groups(highest > lowest),
        "groups/all_right": groups.mean_over_groups(lowest >= reward_range[1]),
        "groups/all_wrong": groups.mean_over_groups(highest <= reward_range[0]),
    }


def length_metrics(
    completion_lengths: Shaped[Array, "N"], advantages: Float[Array, "N"], groups: Groups
) -> dict[str, Float[Array, ""]]:
    """How long responses are, in tokens that exist (not tokens that train).

    - `length/mean`: a steady climb to the length limit means truncation, not thought.
    - `length/cv`: std over mean within mixed groups. Near 0 all aggregation rules agree; the larger, the more
    the choice
      of rule decides.
    - `length/gap`: (L₋ − L₊) / L in mixed groups. Above 0 wrong answers are longer: `token` then pushes
    harder on wrong
      answers than on right ones, below 0 the reverse.
    """
    check_values(completion_lengths >= 0, "completion_lengths: expected none below 0", completion_lengths)
    lengths = as_float(completion_lengths)
    mixed, positive, negative = _sides(advantages, groups)
    mean = groups.mean(lengths)
    spread = jnp.sqrt(groups.mean((lengths - mean) ** 2))
    return {
        "length/mean": divide(groups.total(lengths), groups.total(groups.counted)),
        "length/cv": groups.mean_over_groups(divide(spread, mean), mixed),
        "length/gap": groups.mean_over_groups(
            divide(_mean_where(negative, lengths, groups) - _mean_where(positive, lengths, groups), mean),
            mixed,
        ),
    }


def coupling_log_ratio(
    token_weights: Float[Array, "N"],
    advantages: Float[Array, "N"],
    lengths: Float[Array, "N"],
    groups: Groups,
) -> Float[Array, ""]:
    """`coupling/log_ratio`: log of Σ_{S+} w|A| / Σ_{S−} w|A|, mean over mixed groups (arXiv 2605.04077).

    0: right and wrong answers of a prompt pull equally hard. Above 0 right ones pull harder; under `token`
    this is log L₊/L₋, so the policy is pushed towards whichever side is longer. Always 0 under `sequence` and
    `balanced_mass`.
    """
    pull = token_weights * lengths * jnp.abs(advantages)
    positive, negative = groups.sum(pull * (advantages > 0)), groups.sum(pull * (advantages < 0))
    both = (positive > 0) & (negative > 0)
    log_ratio = jnp.log(jnp.where(both, positive, 1.0)) - jnp.log(jnp.where(both, negative, 1.0))
    return groups.mean_over_groups(log_ratio, both)


def shared_token_residue(
    token_weights: Float[Array, "N"],
    advantages: Float[Array, "N"],
    groups: Groups,
    constants: Float[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """`shared_token/residue`: |Σ_i ω_i Â_i w̃_i| / Σ_i |ω_i Â_i w̃_i|, mean over groups (arXiv 2604.13088v1).

    The share of the pull on a token that every response has which does not cancel, although such a token says
    nothing about the reward. 0: it cancels, as under `token` on-policy or DFPO. Well above 0: common tokens
    drift with the lengths or the ratios. `constants` are DFPO's w̃; None takes 1, the on-policy value.
    """
    pull = token_weights * advantages * (1.0 if constants is None else constants)
    size = groups.sum(jnp.abs(pull))
    return groups.mean_over_groups(divide(jnp.abs(groups.sum(pull)), size), size > 0)


def learning_tax(
    token_ids: Int[Array, "N T"],
    loss_mask: Bool[Array, "N T"],
    token_weights: Float[Array, "N"],
    advantages: Float[Array, "N"],
    *,
    vocab_size: int,
    axis_name: str | None = None,
) -> dict[str, Float[Array, ""]]:
    """`learning_tax/decile_1` … `_10`: share of Σ|w A| on each tenth of the batch's tokens, the most frequent
    ids first.

    0.1 everywhere: effort is spread as tokens are. Much above 0.1 in the first deciles: the update is spent
    on tokens every response has (spaces, "the", digits), which cannot tell right from wrong (arXiv
    2604.13088v1).
    """
    pull = jnp.where(loss_mask, jnp.abs(token_weights * advantages)[:, None], 0.0)
    ids = jnp.where(loss_mask, token_ids, 0).reshape(-1)
    count = jax.ops.segment_sum(as_float(loss_mask).reshape(-1), ids, vocab_size)
    mass = jax.ops.segment_sum(pull.reshape(-1), ids, vocab_size)
    if axis_name is not None:
        count, mass = jax.lax.psum((count, mass), axis_name)
    order = jnp.argsort(-count)
    count, mass = count[order], mass[order]
    end = jnp.cumsum(count)
    edges = jnp.linspace(0.0, 1.0, 11)[:, None] * end[-1]
    # An id whose occurrences lie across an edge gives each tenth its part.
    inside = jnp.clip(edges, (end - count)[None], end[None])
    share = divide((inside[1:] - inside[:-1]) @ divide(mass, count), jnp.sum(mass))
    return {f"learning_tax/decile_{k + 1}": share[k] for k in range(10)}


def batch_metrics(
    *,
    advantages: Float[Array, "N"],
    token_weights: Float[Array, "N"],
    loss_mask: Bool[Array, "N T"],
    completion_lengths: Shaped[Array, "N"],
    groups: Groups,
    constants: Float[Array, "N"] | None = None,
) -> dict[str, Float[Array, ""]]:
    """The `length/`, `coupling/` and `shared_token/` metrics of one mini-batch."""
    lengths = jnp.sum(loss_mask, axis=-1, dtype=float)
    advantages = as_float(advantages)
    return length_metrics(completion_lengths, advantages, groups) | {
        "coupling/log_ratio": coupling_log_ratio(token_weights, advantages, lengths, groups),
        "shared_token/residue": shared_token_residue(token_weights, advantages, groups, constants),
    }


def global_norm(tree: Any) -> Float[Array, ""]:
    """`grad/norm`: root of the sum of squares of all leaves.

    A jump of orders of magnitude comes before a collapse; clipped at every step, the learning rate is not
    what it says.
    """
    return jnp.sqrt(sum(jnp.sum(as_float(leaf) ** 2) for leaf in jax.tree.leaves(tree)))


def _sides(
    advantages: Float[Array, "N"], groups: Groups
) -> tuple[Bool[Array, "N"], Bool[Array, "N"], Bool[Array, "N"]]:
    positive, negative = advantages > 0, advantages < 0
    return (groups.sum(positive) > 0) & (groups.sum(negative) > 0), positive, negative


def _mean_where(rows: Bool[Array, "N"], x: Float[Array, "N"], groups: Groups) -> Float[Array, "N"]:
    return divide(groups.sum(x * rows), groups.sum(rows))
