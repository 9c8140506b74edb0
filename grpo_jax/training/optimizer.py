"""AdamW with warm-up, from optax, and clipping by global norm.

Moments take 16 bits at the least (`first_moment_dtype`), as no library was found that keeps them in 8 behind optax's
interface (November 2026). optax 0.2.8 and eformer 0.0.101 have no such optimizer; qwix 0.1.8 and aqtp 0.9.0 quantize
models, without optimizers. flashoptim-jax 0.1.0, its only release, has one, but its `step` returns parameters, and its
scales are of 32 neighbours in the flattened array, which fsdp and tensor do not split as they do the parameter.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

DECAYED = ("kernel", "embedding", "head", "a", "b")
"""Names of matrices; a and b are a LoRA adapter's."""


def make_optimizer(
    *,
    learning_rate: float,
    warmup_steps: int,
    schedule: Literal["constant", "cosine", "linear"],
    total_steps: int,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    max_grad_norm: float,
    first_moment_dtype: Literal["float32", "bfloat16"],
) -> optax.GradientTransformation:
    """The optimizer of one stage of `total_steps` optimizer steps."""
    rate = make_schedule(
        learning_rate=learning_rate, warmup_steps=warmup_steps, schedule=schedule, total_steps=total_steps
    )
    return optax.chain(
        clip_by_global_norm(max_grad_norm),
        optax.adamw(
            rate,
            b1=b1,
            b2=b2,
            eps=eps,
            weight_decay=weight_decay,
            mask=is_matrix,
            mu_dtype=first_moment_dtype,
        ),
    )


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Gradients times min(1, max_norm / norm).

    optax's chooses between scaled and unscaled gradients, which XLA on CPU then holds beside the gradients themselves.
    """

    def clip(gradients: Any, params: Any = None) -> Any:
        factor = jnp.minimum(1.0, max_norm / optax.tree.norm(gradients))
        return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), gradients)

    return optax.stateless(clip)


def make_schedule(
    *, learning_rate: float, warmup_steps: int, schedule: str, total_steps: int
) -> optax.Schedule:
    """Linear warm-up from learning_rate/warmup_steps, then constant, or cosine or linear decay to 0 at `total_steps`."""
    decay_steps = max(1, total_steps - warmup_steps)
    after = {
        "constant": optax.constant_schedule(learning_rate),
        "cosine": optax.cosine_decay_schedule(learning_rate, decay_steps),
        "linear": optax.linear_schedule(learning_rate, 0.0, decay_steps),
    }[schedule]
    if not warmup_steps:
        return after
    # The first step must not have a rate of zero, so the ramp ends, rather than starts, a step early.
    ramp = optax.linear_schedule(learning_rate / warmup_steps, learning_rate, max(1, warmup_steps - 1))
    return optax.join_schedules([ramp, after], [warmup_steps])


def is_matrix(params: Any) -> Any:
    """Marks the leaves that weight decay applies to: kernels, embeddings and adapters, not norms and biases.

    By name, because layers are stacked: a norm's scale has two axes there, as an unstacked matrix has.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: leaf_name(path) in DECAYED, params)


def leaf_name(path: tuple) -> str:
    """The last attribute name on a key path (nnx wraps each leaf in a variable, whose own key is skipped)."""
    names = [str(getattr(k, "key", getattr(k, "name", k))) for k in path]
    return next(name for name in reversed(names) if name not in ("value", "raw_value"))
