"""Where the sampler's randomness comes from: named folds, so that a number depends on what it is for alone.

    run key ─ step ─▶ call key ─ prompt index ─ sample index ─▶ completion key ─ position ─▶ one uniform

Nothing else enters: no slot, neighbour, batch size, device or host. The generator is always threefry, whose
bits are the same on every backend and for every shape they are drawn in.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32


def threefry(key: Key[Array, ""] | UInt32[Array, "2"]) -> Key[Array, ""]:
    """The key as a typed threefry key; a key of another generator is an error."""
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape != (2,):
            raise ValueError(f"key has shape {key.shape}; expected one key, as jax.random.key(seed) makes it")
        return jax.random.wrap_key_data(key, impl="threefry2x32")
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise ValueError(
            f"key is of the generator {jax.random.key_impl(key)}, whose numbers differ between backends;"
            " expected threefry: jax.random.key(seed, impl='threefry2x32')"
        )
    return key


def completion_keys(
    key: Key[Array, ""],
    prompt_indices: Int[Array, "B"],
    sample_indices: Int[Array, "G"] | Int[Array, "B G"],
) -> Key[Array, "B G"]:
    """The key of every completion of a call; `sample_indices` may differ between prompts."""
    prompt_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, prompt_indices)
    fold_samples = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    B, G = len(prompt_indices), sample_indices.shape[-1]
    return jax.vmap(fold_samples)(prompt_keys, jnp.broadcast_to(sample_indices, (B, G)))


def uniforms(keys: Key[Array, "..."], positions: Int[Array, "..."]) -> Float[Array, "..."]:
    """One number in [0, 1) for each completion's token at the given position (0 is its first token)."""
    shape = keys.shape
    folded = jax.vmap(jax.random.fold_in)(keys.reshape(-1), positions.reshape(-1))
    return jax.vmap(jax.random.uniform)(folded).reshape(shape)
