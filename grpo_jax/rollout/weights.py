"""Parameters as the sampler wants them: in the dtype it computes in, on the devices it samples on.

Both are done once per rollout. Casting changes no number: every decode step would cast the same values, and read
twice the bytes to do so. Embedding, head and norms stay as they are, for they are computed with in float32.
"""

from functools import partial

import jax
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from grpo_jax.models.axes import parameter_sharding
from grpo_jax.models.config import ModelConfig


def prepared(params: nnx.State, config: ModelConfig, mesh: Mesh | None) -> nnx.State:
    """The parameters to sample with; those that need no change are the very same arrays."""
    flat = nnx.to_flat_state(params)
    if any(_is_cast(path) and leaf.dtype != config.dtype for path, leaf in flat):
        params = _cast(params, config.dtype)
    return params if mesh is None else jax.device_put(params, _shardings(params, config, mesh))


def _is_cast(path: tuple) -> bool:
    return path[0] == "blocks" and path[-1] in ("kernel", "bias", "a", "b")


@partial(jax.jit, static_argnums=1)
def _cast(params: nnx.State, dtype: str) -> nnx.State:
    flat = nnx.to_flat_state(params)
    return nnx.from_flat_state(
        [(path, leaf.replace(leaf[...].astype(dtype)) if _is_cast(path) else leaf) for path, leaf in flat]
    )


def _shardings(params: nnx.State, config: ModelConfig, mesh: Mesh) -> nnx.State:
    flat = nnx.to_flat_state(params)

    def where(path: tuple, leaf: jax.Array) -> NamedSharding:
        return parameter_sharding(".".join(map(str, path)), leaf.shape, mesh=mesh, config=config)

    return nnx.from_flat_state([(path, leaf.replace(where(path, leaf))) for path, leaf in flat])
