"""The head and its softmax together: log π of given tokens and the entropy of π, from hidden states.

The head runs over blocks of the vocabulary and the softmax is summed as they come, so that logits are worked on while
they are in a cache. What the backward pass needs of them is kept or, to save memory, computed again block by block;
then no more than a block of them ever exists. The matrix is read once in each pass, whatever the number of tokens.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from grpo_jax.models.axes import constrain, parts_of, pick, split_of
from grpo_jax.models.reductions import along_rows

BLOCK_BYTES = 16 << 20
"""Size to aim at for a block of logits: what a CPU's last cache holds, and for an accelerator large enough."""
NARROWEST_BLOCK = 512
FEW_ROWS = 32
"""Up to here XLA on CPU takes half as long again over a matrix [V, D] as the right factor, where it would put it."""
NEVER = -1e30
"""A logit that has no weight, without infinities that would turn into NaN."""


class Head(NamedTuple):
    """A matrix from hidden states to logits: [V, D] (a tied embedding) or [D, V], as `vocab_axis` says."""

    weight: Float[Array, "..."]
    vocab_axis: int

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits whatever the dtypes: their errors go straight into log-probabilities."""
        wide, hidden = self.weight.astype(jnp.float32), hidden.astype(jnp.float32)
        if self.vocab_axis == 1:
            return hidden @ wide
        if hidden.ndim != 2 or hidden.shape[0] > FEW_ROWS:
            return hidden @ wide.T
        return jax.lax.platform_dependent(hidden, wide, cpu=_from_the_left, default=lambda h, w: h @ w.T)


def _from_the_left(hidden: Float[Array, "n D"], weight: Float[Array, "V D"]) -> Float[Array, "n V"]:
    """hidden · weightᵀ with the matrix as the left factor, which XLA would undo."""
    return jax.lax.optimization_barrier(weight @ hidden.T).T


def block_columns(part: int, *, tokens: int, parts: int) -> int:
    """Columns of a block, where each of `parts` devices has `part` columns of the vocabulary for `tokens` tokens."""
    most = max(BLOCK_BYTES // (4 * tokens * parts), NARROWEST_BLOCK)
    return -(-part // -(-part // most))


def log_prob_and_entropy(
    head: Head,
    hidden: Float[Array, "... D"],
    targets: Int[Array, "..."],
    *,
    temperature: float,
    keep_logits: bool,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """log softmax(logits / temperature)[target] and −Σ p log p, in float32.

    `keep_logits` keeps them for the backward pass, which otherwise computes them again.
    """
    flat = constrain(hidden.reshape(-1, hidden.shape[-1]).astype(jnp.float32), "rows")
    blocks = _Blocks.of(head, tokens=flat.shape[0], temperature=temperature, keep_logits=keep_logits)
    values = _apply(blocks, flat, head.weight, targets.reshape(-1))
    return jax.tree.map(lambda x: x.reshape(targets.shape), values)


@dataclass(frozen=True)
class _Blocks:
    """How the vocabulary is cut: into one part for each device of `tensor`, and these into blocks of `size` columns.

    All parts go through their blocks side by side, so that nothing is exchanged before the end. The last block reaches
    back into the one before where they do not fit evenly; what it has seen already then counts for nothing.
    """

    vocab_axis: int
    parts: int
    part: int
    size: int
    temperature: float
    keep_logits: bool

    @classmethod
    def of(cls, head: Head, *, tokens: int, temperature: float, keep_logits: bool) -> "_Blocks":
        vocab = head.weight.shape[head.vocab_axis]
        parts = parts_of(split_of(["vocab"], [vocab]))
        part = vocab // parts
        size = block_columns(part, tokens=tokens, parts=parts)
        return cls(head.vocab_axis, parts, part, size, temperature, keep_logits)

    @property
    def numbers(self) -> Int[Array, "blocks"]:
        return jnp.arange(-(-self.part // self.size))

    def start(self, number: Int[Array, ""]) -> Int[Array, ""]:
        """The first column of a block in its part."""
        return jnp.minimum(number * self.size, self.part - self.size)

    def split(self, weight: Float[Array, "..."]) -> Float[Array, "..."]:
        """The matrix as [parts, part, D] or [D, parts, part]."""
        axis = self.vocab_axis
        return weight.reshape(*weight.shape[:axis], self.parts, self.part, *weight.shape[axis + 1 :])

    def cut(self, weight: Float[Array, "..."], number: Int[Array, ""]) -> Float[Array, "..."]:
        """A block of it, [parts, size, D] or [D, parts, size]."""
        start, axis = self.start(number), self.vocab_axis + 1
        return jax.lax.dynamic_slice_in_dim(self.split(weight), start, self.size, axis)

    def added(self, total: Float[Array, "..."], block: Float[Array, "..."], number) -> Float[Array, "..."]:
        """`total`, split, with a block's share added."""
        start, axis = self.start(number), self.vocab_axis + 1
        here = jax.lax.dynamic_slice_in_dim(total, start, self.size, axis)
        return jax.lax.dynamic_update_slice_in_dim(total, here + block, start, axis)

    def logits(self, hidden: Float[Array, "M D"], block: Float[Array, "..."], number: Int[Array, ""]):
        """[parts, M, size] logits of a block over the temperature."""
        equation = "md,pcd->pmc" if self.vocab_axis == 0 else "md,dpc->pmc"
        values = self.einsum(equation, hidden, block.astype(jnp.float32)) / self.temperature
        if self.part % self.size:
            seen = self.start(number) + jnp.arange(self.size) < number * self.size
            values = jnp.where(seen[None, None, :], NEVER, values)
        return constrain(values, "vocab", "rows")

    def einsum(self, equation: str, *arrays: Array) -> Array:
        """jnp.einsum; a single part is left out, for XLA on CPU takes long over a product with a batch of one."""
        if self.parts > 1:
            return jnp.einsum(equation, *arrays)
        terms, result = equation.split("->")
        arrays = [
            x.squeeze(t.index("p")) if "p" in t else x for t, x in zip(terms.split(","), arrays, strict=True)
        ]
        return jnp.expand_dims(jnp.einsum(equation.replace("p", ""), *arrays), result.index("p"))

    def place(self, targets: Int[Array, "M"], number: Int[Array, ""]) -> Int[Array, "parts M"]:
        """Where in the block each target is, −1 if it is not there."""
        in_part = targets[None, :] - self.part * jnp.arange(self.parts)[:, None]
        here = (in_part >= number * self.size) & (in_part < jnp.minimum((number + 1) * self.size, self.part))
        return jnp.where(here, in_part - self.start(number), -1)


def _forward(blocks: _Blocks, hidden, weight, targets, *, keep_logits: bool):
    """((log_prob [M], entropy [M]), (log z [M], kept logits)): a running maximum, and sums relative to it."""

    def step(carry, number):
        top, total, weighted, chosen = carry
        logits = blocks.logits(hidden, blocks.cut(weight, number), number)
        new_top = jnp.maximum(top, along_rows(jnp.max, logits))
        shifted = logits - new_top[..., None]
        exps = jnp.exp(shifted)
        # Sums so far are relative to the old maximum: Σ e^(s−m') = e^(m−m') Σ e^(s−m), and likewise with a factor s − m'.
        down = top - new_top
        weighted = jnp.exp(down) * (weighted + down * total) + along_rows(jnp.sum, exps * shifted)
        total = jnp.exp(down) * total + along_rows(jnp.sum, exps)
        place = blocks.place(targets, number)
        chosen += jnp.where(place < 0, 0.0, pick(logits, jnp.maximum(place, 0)))
        return (new_top, total, weighted, chosen), (logits if keep_logits else None)

    zero = jnp.zeros_like(hidden, shape=(blocks.parts, hidden.shape[0]))
    (top, total, weighted, chosen), kept = jax.lax.scan(
        step, (zero + NEVER, zero, zero, zero), blocks.numbers
    )
    highest = top.max(0)
    down = top - highest[None]
    weighted = (jnp.exp(down) * (weighted + down * total)).sum(0)
    total = (jnp.exp(down) * total).sum(0)
    log_total = jnp.log(total)
    log_z, entropy = highest + log_total, log_total - weighted / total
    return (chosen.sum(0) - log_z, entropy), (log_z, kept)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(blocks: _Blocks, hidden, weight, targets):
    return _forward(blocks, hidden, weight, targets, keep_logits=False)[0]


def _with_residuals(blocks: _Blocks, hidden, weight, targets):
    values, (log_z, kept) = _forward(blocks, hidden, weight, targets, keep_logits=blocks.keep_logits)
    return values, (hidden, weight, targets, log_z, values[1], kept)


def _pull(blocks: _Blocks, residuals, cotangents):
    """∂log π(y)/∂s_v = [v = y] − p_v and ∂H/∂s_v = −p_v (log p_v + H), through s = hidden · weight / temperature."""
    hidden, weight, targets, log_z, entropy, kept = residuals
    of_log_prob, of_entropy = (cotangent[None, :, None] / blocks.temperature for cotangent in cotangents)
    tied = blocks.vocab_axis == 0

    def step(carry, inputs):
        of_hidden, of_weight = carry
        number, logits = inputs
        block = blocks.cut(weight, number).astype(jnp.float32)
        if logits is None:
            logits = blocks.logits(hidden, block, number)
        log_p = logits - log_z[None, :, None]
        pull = of_log_prob + of_entropy * (log_p + entropy[None, :, None])
        is_target = jnp.arange(blocks.size)[None, None, :] == blocks.place(targets, number)[..., None]
        of_logits = jnp.where(is_target, of_log_prob, 0.0) - jnp.exp(log_p) * pull
        of_hidden += blocks.einsum("pmc,pcd->pmd" if tied else "pmc,dpc->pmd", of_logits, block)
        share = blocks.einsum("pmc,md->pcd" if tied else "pmc,md->dpc", of_logits, hidden)
        return (of_hidden, blocks.added(of_weight, share, number)), None

    # zeros_like, so that they differ from device to device as `hidden` does.
    shapes = (blocks.parts, *hidden.shape), jax.eval_shape(blocks.split, weight).shape
    start = tuple(jnp.zeros_like(hidden, shape=shape) for shape in shapes)
    (of_hidden, of_weight), _ = jax.lax.scan(step, start, (blocks.numbers, kept))
    return of_hidden.sum(0), of_weight.reshape(weight.shape).astype(weight.dtype), None


_apply.defvjp(_with_residuals, _pull)
