"""Random keys by name, so that every use of randomness is its own stream and a resumed run draws the same numbers."""

import zlib

import jax
import numpy as np


def run_key(seed: int) -> jax.Array:
    """The key of a run; threefry on every backend, so that samples do not depend on the hardware's generator.

    Raises:
        ValueError: the seed is no whole number of 64 bits.
    """
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed: got {seed}, expected a whole number of 64 bits")
    return jax.random.key(seed, impl="threefry2x32")


def on_host(key: jax.Array) -> jax.Array:
    """The key on this host's first device, for programs that only this host runs."""
    data = np.asarray(jax.random.key_data(key))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(key))


def fold(key: jax.Array, *path: str | int | jax.Array) -> jax.Array:
    """The key at `path` below `key`, e.g. `fold(key, "rollout", step)`. Names are folded by their CRC-32."""
    for part in path:
        key = jax.random.fold_in(key, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return key
