"""Numbers that say what an update is doing."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from grpo_jax.losses.groups import as_float, divide


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Totals:
    """Metrics before division: totals travel with their counts, and are divided once all parts have met.

    Parts may be micro-batches or devices, cut anyhow. `means` maps a name to (total, count), `sums` a name to
    a total that is its own value, `maxima` a name to the largest value.
    """

    means: dict[str, tuple[Float[Array, "*parts"], Float[Array, "*parts"]]] = field(default_factory=dict)
    sums: dict[str, Float[Array, "*parts"]] = field(default_factory=dict)
    maxima: dict[str, Float[Array, "*parts"]] = field(default_factory=dict)

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


def token_means(
    values: dict[str, Shaped[Array, "n T"]], mask: Bool[Array, "n T"]
) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """(total, count) over valid tokens of each value."""
    count = jnp.sum(mask, dtype=jnp.float32)
    return {
        name: (jnp.sum(jax.lax.stop_gradient(as_float(value)), where=mask), count)
        for name, value in values.items()
    }
