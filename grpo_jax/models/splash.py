"""Attention of the group layout by Pallas splash attention on TPU: one kernel call per group, and no score is ever stored.

The kernel comes with JAX. Its mask is computed inside it from row and column numbers, so blocks between two completions
of a group are skipped.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float, Int

from grpo_jax.models import axes
from grpo_jax.models.attention import Attend

LANES = 128
"""Blocks are multiples of it."""


class GroupMask(masks._ComputableMask):
    """Which columns of [prompt | completion | completion | …] a row sees: its past, without the other completions.

    JAX has no public name for masks computed in the kernel; a stored one would take (P + G·T)² bytes.
    """

    def __init__(self, length: int, P: int, T: int):
        self.key = (length, P, T)
        super().__init__((length, length), partial(sees, P=P, T=T))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupMask) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def sees(row: Int[Array, "..."], column: Int[Array, "..."], *, P: int, T: int):
    """Whether a row sees a column: (k ≤ q) ∧ (k < P ∨ (q − P) // T = (k − P) // T)."""
    return (column <= row) & ((column < P) | ((row - P) // T == (column - P) // T))


def group(prompt_lengths: Int[Array, "B"], P: int, G: int, T: int, *, interpret: bool = False) -> Attend:
    """`attention.group` by the kernel. Layers have no sliding windows here.

    Args:
      interpret: run the kernel's operations one by one, on any device.
    """
    length = P + G * T
    padded = length + -length % LANES
    column = jnp.arange(padded)[None, :]
    # Padding of the prompt is a segment of its own, which no real token sees. That of completions lies in their future.
    segments = ((column >= prompt_lengths[:, None]) & (column < P)).astype(jnp.int32)

    def attend(query, key, value, layer, window, cache):
        del layer
        assert window is None, "splash attention here knows no sliding windows"

        def heads_first(x):
            return jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, padded - length), (0, 0)))

        query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        run = partial(_run, P=P, T=T, interpret=interpret)
        out = _on_every_device(run, *map(heads_first, (query, key, value)), segments, interpret=interpret)
        return jnp.swapaxes(out[:, :, :length], 1, 2), cache

    return attend


def _run(
    query: Float[Array, "B H L h"],
    key: Float[Array, "B K L h"],
    value: Float[Array, "B K L h"],
    segments: Int[Array, "B L"],
    *,
    P: int,
    T: int,
    interpret: bool,
) -> Float[Array, "B H L h"]:
    _, heads, length, _ = query.shape
    block = next(size for size in (512, 256, LANES) if length % size == 0)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([GroupMask(length, P, T)] * heads),
        block_sizes=kernels.BlockSizes(*[block] * 8),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    return jax.vmap(kernel)(query, key, value, kernels.SegmentIds(segments, segments)).astype(query.dtype)


def _on_every_device(run, query, key, value, segments, *, interpret: bool):
    """`run` on each device's own rows and heads: the partitioner cannot split a kernel's call.

    JAX cannot differentiate a shard_map inside another, so there the gradient is a shard_map of its own, which runs the
    kernel's forward pass again.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # A kernel wants every axis manual, also those that split nothing. Interpreted it does not, and on a CPU a manual axis
    # of size 1 aborts.
    names = {name for name in mesh.auto_axes if mesh.shape[name] > 1 or not interpret}
    if mesh.size == 1 or not names:
        return run(query, key, value, segments)
    by_head = axes.split_of(("rows", "key_heads"), key.shape[:2])
    by_row = jax.sharding.PartitionSpec(*by_head[:1])
    inputs = (by_head, by_head, by_head, by_row)
    mapped = partial(jax.shard_map, axis_names=names, check_vma=False)

    def gradient(query, key, value, segments, cotangent):
        return jax.vjp(lambda *qkv: run(*qkv, segments), query, key, value)[1](cotangent)

    @jax.custom_vjp
    def apply(*arguments):
        return mapped(run, in_specs=inputs, out_specs=by_head)(*arguments)

    def pull(arguments, cotangent):
        pulled = mapped(gradient, in_specs=(*inputs, by_head), out_specs=(by_head,) * 3)
        none = np.zeros(segments.shape, jax.dtypes.float0)
        return *pulled(*arguments, cotangent), none

    apply.defvjp(lambda *arguments: (apply(*arguments), arguments), pull)
    return apply(query, key, value, segments)
