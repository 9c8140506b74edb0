"""Aggregation rules: how much each sequence's tokens weigh.

The loss is −Σ_i Σ_t ω_i m_it ℓ_it, and a rule *is* its ω: one number per sequence, from advantages, lengths
and group sums alone. Everything a rule divides by, it gets from `group_sum` (over the row's group) and
`total` (over the batch), so a rule never knows how the batch was cut into micro-batches or devices. To add
one, write the function.

    def my_rule(advantages, lengths, group_sum, total): ...  # [N], [N] -> [N]

Padding rows and sequences without a valid token get weight 0 whatever a rule says about them.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from grpo_jax.losses.arrays import check, divide
from grpo_jax.losses.groups import GroupSum, Total

Rule = Callable[[Float[Array, "N"], Float[Array, "N"], GroupSum, Total], Float[Array, "N"]]


def sequence(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i = 1 / (B G T_i): the mean over a sequence's tokens, then over sequences.

    GRPO, arXiv 2402.03300, eq. 3.
    """
    return divide(one_per_sequence(lengths, group_sum, total), lengths)


def sequence_sum(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i = 1 / (B G): the sum over a sequence's tokens, then the mean over sequences."""
    return one_per_sequence(lengths, group_sum, total)


def token(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i = 1 / (B Σ_{j∈g} T_j): the mean over a group's tokens, then over groups.

    What Balanced Aggregation, arXiv 2605.04077, calls token aggregation.
    """
    return divide(1.0, count_groups(lengths, group_sum, total) * group_sum(lengths))


def batch_token(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i = 1 / Σ_j T_j: the mean over all tokens of the batch (DAPO, arXiv 2503.14476, eq. 8)."""
    return jnp.broadcast_to(divide(1.0, total(lengths)), lengths.shape)


def constant(*, max_length: int | None = None) -> Rule:
    """The rule ω_i = 1 / (B G L_max): a sequence's sum over tokens, by a constant (Dr. GRPO, arXiv
    2503.20783).

    `max_length` is L_max, the longest completion the sampler may produce.
    """
    check(
        max_length is not None and max_length > 0,
        f"max_length: the constant rule divides by it, so it must be positive; got {max_length}",
    )

    def constant_rule(advantages, lengths, group_sum, total):
        return one_per_sequence(lengths, group_sum, total) / max_length

    return constant_rule


def balanced(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i = |S_s| / (B G Σ_{j∈S_s} T_j), S_s the sequences of i's group that share its advantage's sign.

    A token mean within each sign, then the two signs by their number of sequences (Balanced Aggregation,
    arXiv 2605.04077): tokens of one sign weigh alike, and the longer side does not outweigh the shorter.
    """
    side_sum = sums_by_sign(advantages, lengths, group_sum)
    return one_per_sequence(lengths, group_sum, total) * divide(
        side_sum(jnp.ones_like(lengths)), side_sum(lengths)
    )


def balanced_mass(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i = M_s / (B G Σ_{j∈S_s} |A_j| T_j), M_s = Σ_{S_s} |A_j|: `balanced` for graded rewards.

    Each side totals M_s / G however long its sequences are; with binary rewards this is `balanced`. The paper
    is silent on graded rewards, where counts do not balance the two sides; of the two readings this is the
    default.
    """
    side_sum = sums_by_sign(advantages, lengths, group_sum)
    size = jnp.abs(advantages)
    return one_per_sequence(lengths, group_sum, total) * divide(side_sum(size), side_sum(size * lengths))


def balanced_unit(
    advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum, total: Total
) -> Float[Array, "N"]:
    """ω_i |A_i| = M_s / (B G Σ_{j∈S_s} T_j): the other reading, where every token of a side counts alike.

    The surrogate is to see advantages of size 1; being proportional to |A|, it does if the weight is divided
    by it.
    """
    side_sum = sums_by_sign(advantages, lengths, group_sum)
    size = jnp.abs(advantages)
    per_token = one_per_sequence(lengths, group_sum, total) * divide(side_sum(size), side_sum(lengths))
    return divide(per_token, size)


RULES: dict[str, Callable] = {
    rule.__name__: rule
    for rule in (
        sequence,
        sequence_sum,
        token,
        batch_token,
        constant,
        balanced,
        balanced_mass,
        balanced_unit,
    )
}
"""The rules by name; `constant` is called with its max_length to give one."""

SIGN_BLIND: dict[Rule, Rule] = {balanced: token, balanced_mass: token, balanced_unit: token}
"""What averages the KL and entropy terms, which have no sign, where it is not the rule itself."""


def one_per_sequence(lengths: Float[Array, "N"], group_sum: GroupSum, total: Total) -> Float[Array, "N"]:
    """1 / (B G): every group counts alike, and every sequence of a group. Groups may differ in size."""
    return divide(1.0, count_groups(lengths, group_sum, total) * group_sum(jnp.ones_like(lengths)))


def count_groups(lengths: Float[Array, "N"], group_sum: GroupSum, total: Total) -> Float[Array, ""]:
    """B, the number of groups that have a sequence: each sequence is 1/G of its group."""
    return total(divide(1.0, group_sum(jnp.ones_like(lengths))))


def sums_by_sign(advantages: Float[Array, "N"], lengths: Float[Array, "N"], group_sum: GroupSum) -> GroupSum:
    """A sum over the sequences of a group that share the row's sign.

    Signs are strict: a sequence with advantage 0 or without a valid token is on neither side, and gets 0.
    """
    sign = jnp.where(lengths > 0, jnp.sign(advantages), 0.0)

    def side_sum(x: Float[Array, "N"]) -> Float[Array, "N"]:
        positive = group_sum(jnp.where(sign > 0, x, 0.0))
        negative = group_sum(jnp.where(sign < 0, x, 0.0))
        return jnp.where(sign > 0, positive, jnp.where(sign < 0, negative, 0.0))

    return side_sum
