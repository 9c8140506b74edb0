"""What every file here needs of arrays: safe division, precision, masking, errors that name the argument."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Bool, Float, Shaped


def divide(numerator: Shaped[Array, "..."] | float, denominator: Float[Array, "..."]) -> Float[Array, "..."]:
    """The quotient, and 0 where the denominator is 0: an empty side, group or batch weighs nothing."""
    empty = denominator == 0
    return jnp.where(empty, 0.0, numerator / jnp.where(empty, 1.0, denominator))


def as_float(x: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """`x` in float32, or in float64 if it is that already: nothing here is summed in bfloat16."""
    dtype = jnp.result_type(x)
    floating = jnp.issubdtype(dtype, jnp.floating)
    return jnp.asarray(x, jnp.promote_types(dtype, jnp.float32) if floating else float)


def masked(x: Float[Array, "n T"], mask: Bool[Array, "n T"]) -> Float[Array, "n T"]:
    """`x` in float32 or better, 0 where the mask is False.

    Applied to what goes into exp and log, not to what comes out: where(mask, exp(x), 0) would still send 0 ·
    inf = NaN back through what lies under the mask.
    """
    return jnp.where(mask, as_float(x), 0.0)


def check(holds: bool, message: str) -> None:
    """Raise what the caller got wrong."""
    if not holds:
        raise ValueError(message)


def check_shapes(shape: tuple[int, ...], **arrays: Shaped[Array, "..."] | None) -> None:
    """Raise for the first array, named by its keyword, that has another shape; None is no array."""
    for name, array in arrays.items():
        got = None if array is None else jnp.shape(array)
        check(array is None or got == shape, f"{name}: expected shape {list(shape)}, got {list(got or ())}")


def check_values(holds: Bool[Array, "..."], message: str, values: Shaped[Array, "..."]) -> None:
    """Check values: at once where they are concrete, under `jax.experimental.checkify` where they are traced.

    Without checkify a traced check does nothing, as anything else would cost a device round trip per step.
    """
    if isinstance(holds, jax.core.Tracer):
        checkify.debug_check(jnp.all(holds), message)
    elif getattr(holds, "is_fully_addressable", True) and not np.all(holds):
        raise ValueError(f"{message}; got {np.asarray(values)[~np.asarray(holds)][0]}")
