"""Parameters as the sampler wants them: in the dtype it computes in, or int8, on the devices it samples on.

All is done once per rollout. Casting changes no number: every decode step would cast the same values, and read
twice the bytes to do so. Embedding, head and norms stay as they are, for they are computed with in float32.

In int8 the matrices of the blocks have a scale per column, by Qwix; activations stay as they are. The sampler is
then another policy than the trainer's, by what `sampler/log_prob_gap` says.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from grpo_jax.models.axes import parameter_sharding
from grpo_jax.models.config import ModelConfig

Quantize = Literal["none", "int8"]


def prepared(
    params: nnx.State, config: ModelConfig, mesh: Mesh | None, *, quantize: Quantize = "none"
) -> nnx.State:
    """The parameters to sample with; those that need no change are the very same arrays."""
    params = converted(params, config, quantize=quantize)
    return params if mesh is None else jax.device_put(params, shardings(params, config, mesh))


def converted(params: nnx.State, config: ModelConfig, *, quantize: Quantize) -> nnx.State:
    """The parameters in the sampler's dtypes, where they were."""
    flat = nnx.to_flat_state(params)
    if any(_is_cast(path) and leaf.dtype != config.dtype for path, leaf in flat):
        params = _cast(params, config.dtype)
    return _to_int8(params) if quantize == "int8" else params


def _is_cast(path: tuple) -> bool:
    return path[0] == "blocks" and path[-1] in ("kernel", "bias", "a", "b")


@partial(jax.jit, static_argnums=1)
def _cast(params: nnx.State, dtype: str) -> nnx.State:
    flat = nnx.to_flat_state(params)
    return nnx.from_flat_state(
        [(path, leaf.replace(leaf[...].astype(dtype)) if _is_cast(path) else leaf) for path, leaf in flat]
    )


def require_qwix() -> None:
    """Raises where the library that quantises is missing."""
    try:
        import qwix  # noqa: F401
    except ImportError:
        raise ValueError('rollout.quantize: int8 needs the extra: pip install "grpo_jax[int8]"') from None


@jax.jit
def _to_int8(params: nnx.State) -> nnx.State:
    import qwix

    def quantized(path: tuple, leaf: nnx.Variable) -> nnx.Variable:
        if path[-1] != "kernel":
            return leaf
        return leaf.replace(qwix.quantize(leaf[...], jnp.int8, channelwise_axes=(0, 2)))  # layers, out

    return nnx.from_flat_state([(path, quantized(path, leaf)) for path, leaf in nnx.to_flat_state(params)])


def shardings(params: nnx.State, config: ModelConfig, mesh: Mesh) -> nnx.State:
    """Where each array lives; the scales of a matrix are split as its columns are."""

    def where(path: tuple, leaf: nnx.Variable) -> NamedSharding:
        whole = parameter_sharding(".".join(map(str, path)), leaf.shape, mesh=mesh, config=config)
        columns = PartitionSpec(None, None, *whole.spec[2:3])
        return jax.tree.map(
            lambda x: whole if x.shape == leaf.shape else NamedSharding(mesh, columns), leaf.get_raw_value()
        )

    return nnx.from_flat_state(
        [(path, leaf.replace(where(path, leaf))) for path, leaf in nnx.to_flat_state(params)]
    )
