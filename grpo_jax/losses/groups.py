"""Sums over groups and over the batch, wherever its rows happen to live.

Every division of every loss is by one of these sums. They run over all devices (`axis_name`), so a group may
be split between devices, and a padding row (id −1) adds nothing to any of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from grpo_jax.losses.arrays import as_float, check, check_values, divide

GroupSum = Callable[[Float[Array, "N"]], Float[Array, "N"]]
Total = Callable[[Float[Array, "N"]], Float[Array, ""]]


@dataclass(frozen=True)
class Groups:
    """Which group each of this device's rows belongs to, and reductions over groups.

    A reduction takes one number per row and gives back, on every row, the result for the row's own group: 0
    on padding rows. `total` is over all rows of the batch and gives one number.
    """

    ids: Int[Array, "N"]
    num_groups: int
    axis_name: str | None = None

    @property
    def counted(self) -> Bool[Array, "N"]:
        """Rows that are not padding."""
        return self.ids >= 0

    def sum(self, x: Shaped[Array, "N"]) -> Float[Array, "N"]:
        """Σ over the row's group."""
        summed = jax.ops.segment_sum(self._only_counted(x), self.ids, self.num_groups)
        return self._to_rows(summed if self.axis_name is None else jax.lax.psum(summed, self.axis_name))

    def max(self, x: Shaped[Array, "N"]) -> Float[Array, "N"]:
        """Largest value in the row's group."""
        largest = jax.ops.segment_max(self._only_counted(x), self.ids, self.num_groups)
        return self._to_rows(largest if self.axis_name is None else jax.lax.pmax(largest, self.axis_name))

    def min(self, x: Shaped[Array, "N"]) -> Float[Array, "N"]:
        """Smallest value in the row's group."""
        return -self.max(-as_float(x))

    def total(self, x: Shaped[Array, "N"]) -> Float[Array, ""]:
        """Σ over the whole batch."""
        summed = jnp.sum(self._only_counted(x))
        return summed if self.axis_name is None else jax.lax.psum(summed, self.axis_name)

    @cached_property
    def size(self) -> Float[Array, "N"]:
        """G, the number of sequences in the row's group."""
        return self.sum(self.counted)

    def mean(self, x: Shaped[Array, "N"]) -> Float[Array, "N"]:
        """Mean over the row's group."""
        return divide(self.sum(x), self.size)

    def mean_over_groups(
        self, x: Shaped[Array, "N"], among: Bool[Array, "N"] | None = None
    ) -> Float[Array, ""]:
        """Mean over groups, those marked in `among`, of a value that is the same on all rows of a group."""
        share = divide(1.0, self.size)
        if among is not None:
            share = jnp.where(among, share, 0.0)
        return divide(self.total(share * jnp.where(share > 0, as_float(x), 0.0)), self.total(share))

    def whole_batch(self) -> "Groups":
        """The same rows as one single group."""
        return Groups(jnp.minimum(self.ids, 0), 1, self.axis_name)

    def only(self, rows: Bool[Array, "N"]) -> "Groups":
        """The same groups without the other rows, as if those had never been sampled."""
        return Groups(jnp.where(rows, self.ids, -1), self.num_groups, self.axis_name)

    def _only_counted(self, x: Shaped[Array, "N"]) -> Float[Array, "N"]:
        return jnp.where(self.counted, as_float(x), 0.0)

    def _to_rows(self, per_group: Float[Array, "groups"]) -> Float[Array, "N"]:
        return jnp.where(self.counted, per_group[jnp.maximum(self.ids, 0)], 0.0)


def group_rows(
    group_ids: Int[Array, "N"], num_groups: int | None = None, axis_name: str | None = None
) -> Groups:
    """`Groups` of these ids, checked: ids lie in [0, num_groups), or are −1 on a padding row.

    `num_groups` is static. It may be left out where the ids are concrete and on one device.
    """
    check(group_ids.ndim == 1, f"group_ids: expected shape [N], got {list(group_ids.shape)}")
    traced = isinstance(group_ids, jax.core.Tracer)
    if num_groups is None:
        check(
            not traced and axis_name is None,
            "num_groups: needed under jit, vmap or shard_map, where it must be a static number; got None",
        )
        num_groups = max(int(np.max(group_ids, initial=-1)) + 1, 1)
    check(
        isinstance(num_groups, int | np.integer) and num_groups > 0,
        f"num_groups: expected a static number of at least 1, got {num_groups!r}",
    )
    check_values(
        (group_ids >= -1) & (group_ids < num_groups),
        f"group_ids: expected ids in [0, {num_groups}), or -1 on padding rows",
        group_ids,
    )
    return Groups(group_ids, int(num_groups), axis_name)


def group_sums(
    group_ids: Int[Array, "N"], num_groups: int | None = None, axis_name: str | None = None
) -> tuple[GroupSum, Total]:
    """The two sums an aggregation rule is written with: over the row's group, and over the batch."""
    groups = group_rows(group_ids, num_groups, axis_name)
    return groups.sum, groups.total
