"""Per-token estimates of the KL between policy and reference, with d = ref_log_probs − log_probs.

As a *loss* on the policy's own samples they differ in gradient, not only in variance: k1's expected gradient
is zero (it only adds noise), k2's is that of KL(π‖ref), k3's that of KL(ref‖π). So k2 is the default in the
loss, k3, which is never negative and has low variance, is what `kl/ref` reports, and k1 belongs in the
reward.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

KL = Callable[[Float[Array, "..."]], Float[Array, "..."]]

LINEAR_FROM = 20.0
"""Where k3, which grows as exp(d), goes on along its tangent: one token must not make a step infinite."""


def k1(d: Float[Array, "..."]) -> Float[Array, "..."]:
    """−d: unbiased as a number, zero expected gradient as a loss."""
    return -d


def k2(d: Float[Array, "..."]) -> Float[Array, "..."]:
    """d²/2: as a loss on on-policy samples, the gradient of KL(π‖ref)."""
    return d**2 / 2


def k3(d: Float[Array, "..."]) -> Float[Array, "..."]:
    """e^d − 1 − d ≥ 0: as a loss on on-policy samples, the gradient of KL(ref‖π).

    By expm1, because exp(d) − d − 1 is negative near 0 in floating point.
    """
    near = jnp.minimum(d, LINEAR_FROM)
    # Not d - near, whose two gradients cancel only in exact arithmetic.
    beyond = jnp.maximum(d - LINEAR_FROM, 0.0)
    return jnp.expm1(near) - near + jnp.expm1(LINEAR_FROM) * beyond
