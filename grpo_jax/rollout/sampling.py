"""Token choosers: logits and one uniform number in; the token and its log-probabilities out.

A token is drawn by inverting the cumulative distribution at one uniform number, in two levels: first the
chunk of the vocabulary the number falls in, then the token inside that chunk. Gumbel noise would need a
random number for every token of the vocabulary (91 ms for 64 rows of 49k tokens on two cores; this takes 3).

top-k, top-p and min-p all keep the tokens whose logit is at least some threshold, so each is a rule for that
threshold, and no vocabulary is ever sorted. Tokens tied with the last one kept are kept too.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

CHUNK = 256  # near the square root of usual vocabularies, so both levels are short; a multiple of a TPU lane
MASS_TOLERANCE = 1e-6  # 0.5 + 0.3 in float32 must count as having reached top_p = 0.8


class Draw(NamedTuple):
    """One token per row, and two log-probabilities of it, in float32."""

    ids: Int[Array, "..."]
    log_probs: Float[Array, "..."]
    """Of the distribution drawn from: after logit adjustments, temperature, top-k, top-p and min-p."""
    full_log_probs: Float[Array, "..."]
    """Of the model's whole distribution at the same temperature: what the trainer must reproduce."""


def choose(
    logits: Float[Array, "... V"],
    uniform: Float[Array, "..."],
    *,
    temperature: float | Float[Array, ""] = 0.0,
    top_k: int = 0,
    top_p: float | Float[Array, ""] = 1.0,
    min_p: float | Float[Array, ""] = 0.0,
    adjusted: Float[Array, "... V"] | None = None,
) -> Draw:
    """Draws one token per row from softmax(adjusted / temperature), cut by top-k, then top-p, then min-p.

    The order is Transformers': top-p's mass is that of the distribution top-k left. A Python number that
    switches a rule off (temperature 0, top_k 0, top_p 1, min_p 0) costs nothing; an array is a value that one
    compiled program can vary. `adjusted` are the logits after biases and penalties.

    At temperature 0 the likeliest token is taken (the lowest id of a tie). It had probability 1, so
    `log_probs` is 0; `full_log_probs` is the model's at temperature 1, as there is no distribution at 0.
    """
    assert logits.shape[:-1] == uniform.shape, (logits.shape, uniform.shape)
    logits = logits.astype(jnp.float32)
    adjusted = logits if adjusted is None else adjusted.astype(jnp.float32)
    if isinstance(temperature, int | float) and temperature == 0:
        ids = jnp.argmax(adjusted, axis=-1).astype(jnp.int32)
        return Draw(ids, jnp.zeros(ids.shape, jnp.float32), _log_prob(logits, ids))
    gaps = _gaps(adjusted / temperature)
    gaps = truncate(gaps, top_k=top_k, top_p=top_p, min_p=min_p)
    ids = invert_cdf(gaps, uniform)
    log_probs = -_take(gaps, ids) - jnp.log(_mass(gaps))
    truncated = not (top_k == 0 and _is(top_p, 1.0) and _is(min_p, 0.0))
    if adjusted is logits and not truncated:
        return Draw(ids, log_probs, log_probs)
    return Draw(ids, log_probs, _log_prob(logits / temperature, ids))


def truncate(
    gaps: Float[Array, "... V"],
    *,
    top_k: int = 0,
    top_p: float | Float[Array, ""] = 1.0,
    min_p: float | Float[Array, ""] = 0.0,
) -> Float[Array, "... V"]:
    """Sets the gap (see `_gaps`) of every token that top-k, top-p or min-p cuts off to infinity."""
    if 0 < top_k < gaps.shape[-1]:
        # max, not [-1]: for a slice, XLA's CPU compiler sorts the vocabulary (500 ms where this takes 6).
        last_kept = jnp.max(-jax.lax.top_k(-gaps, top_k)[0], axis=-1, keepdims=True)
        gaps = jnp.where(gaps <= last_kept, gaps, jnp.inf)
    if not _is(top_p, 1.0):
        gaps = jnp.where(gaps <= _nucleus(gaps, top_p)[..., None], gaps, jnp.inf)
    if not _is(min_p, 0.0):
        gaps = jnp.where(jnp.exp(-gaps) >= min_p, gaps, jnp.inf)
    return gaps


def invert_cdf(gaps: Float[Array, "... V"], uniform: Float[Array, "..."]) -> Int[Array, "..."]:
    """The token at which the cumulative probability, in the order of the ids, first exceeds `uniform`.

    A token of probability 0 is never returned, whatever rounding does to the sums, however near 1 the number.
    """
    padding = [(0, 0)] * (gaps.ndim - 1) + [(0, -gaps.shape[-1] % CHUNK)]
    chunks = jnp.pad(gaps, padding, constant_values=jnp.inf).reshape(*gaps.shape[:-1], -1, CHUNK)
    chunk_mass = jnp.exp(-chunks).sum(-1)
    target = uniform * chunk_mass.sum(-1)
    chunk = _first_exceeding(chunk_mass, target)
    index = jax.lax.broadcasted_iota(jnp.int32, chunk_mass.shape, chunk_mass.ndim - 1)
    before = jnp.where(index < chunk[..., None], chunk_mass, 0.0).sum(-1)
    inside = jnp.exp(-jnp.take_along_axis(chunks, chunk[..., None, None], axis=-2)[..., 0, :])
    return chunk * CHUNK + _first_exceeding(inside, target - before)


def _first_exceeding(mass: Float[Array, "... n"], target: Float[Array, "..."]) -> Int[Array, "..."]:
    """The first index of positive mass whose running sum exceeds the target, else the last such index."""
    positive = mass > 0
    reached = positive & (jnp.cumsum(mass, axis=-1) > target[..., None])
    last = mass.shape[-1] - 1 - jnp.argmax(positive[..., ::-1], axis=-1)
    return jnp.where(reached.any(-1), jnp.argmax(reached, axis=-1), last).astype(jnp.int32)


def _gaps(logits: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """How far each logit lies below the largest: ≥ 0, infinite if forbidden; exp(−gap) cannot overflow."""
    return logits.max(-1, keepdims=True) - logits


def _nucleus(gaps: Float[Array, "... V"], top_p: float | Float[Array, ""]) -> Float[Array, "..."]:
    """The smallest gap up to which the mass reaches top_p, by bisection on the bits of the float.

    Non-negative floats order as their bit patterns do, so 31 halvings find the very value, with no sort.
    """
    goal = (top_p - MASS_TOLERANCE) * _mass(gaps)

    def halve(_, bounds):
        low, high = bounds  # the answer lies in (low, high]
        middle = low + (high - low) // 2
        limit = jax.lax.bitcast_convert_type(middle, jnp.float32)[..., None]
        reached = jnp.where(gaps <= limit, jnp.exp(-gaps), 0.0).sum(-1) >= goal
        return jnp.where(reached, low, middle), jnp.where(reached, middle, high)

    infinity = jnp.full(gaps.shape[:-1], 0x7F800000, jnp.int32)
    _, high = jax.lax.fori_loop(0, 31, halve, (jnp.full_like(infinity, -1), infinity))
    return jax.lax.bitcast_convert_type(high, jnp.float32)


def _mass(gaps: Float[Array, "... V"]) -> Float[Array, "..."]:
    return jnp.exp(-gaps).sum(-1)


def _take(values: Float[Array, "... V"], ids: Int[Array, "..."]) -> Float[Array, "..."]:
    return jnp.take_along_axis(values, ids[..., None], axis=-1)[..., 0]


def _log_prob(logits: Float[Array, "... V"], ids: Int[Array, "..."]) -> Float[Array, "..."]:
    gaps = _gaps(logits)
    return -_take(gaps, ids) - jnp.log(_mass(gaps))


def _is(value: float | Array, number: float) -> bool:
    """Whether a setting is this very Python number (an array is a value not known yet)."""
    return isinstance(value, int | float) and value == number
