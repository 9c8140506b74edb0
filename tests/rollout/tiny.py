"""A decoder small enough to sample from in milliseconds, and the slow route its samples are checked by."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from grpo_jax.models.attention import plain, plain_positions
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.types import Rollout
from tests.rollout.boundaries import boundary_distance

CONFIG = ModelConfig(
    vocab_size=23,
    num_layers=2,
    width=16,
    mlp_width=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position=64,
)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5], [7], [8, 8, 8, 8], [2, 7, 1, 8, 2]]


def model(config: ModelConfig = CONFIG, seed: int = 0):
    """(graphdef, params), with weights so large that distributions are not flat, and no adapter at zero."""
    graphdef, params = nnx.split(Decoder(config, rngs=nnx.Rngs(seed)))

    def enlarge(x):
        return 1.5 * x if x.any() else 0.2 * jax.random.normal(jax.random.key(seed), x.shape)

    return graphdef, jax.tree.map(lambda x: enlarge(x) if x.ndim > 2 else x, params)


def full_forward(graphdef, params, rollout: Rollout) -> np.ndarray:
    """Logits [N, T, V] that predict each completion token, by one uncached forward pass over whole rows."""
    decoder = nnx.merge(graphdef, params)
    P, T = rollout.prompt_ids.shape[1], rollout.completion_ids.shape[1]
    ids = jnp.concatenate([rollout.prompt_ids, rollout.completion_ids], axis=1)
    lengths, completion_lengths = jnp.asarray(rollout.prompt_lengths), jnp.asarray(rollout.completion_lengths)
    attend = plain(lengths, completion_lengths, P, T)
    hidden, _ = decoder(ids, plain_positions(lengths, P, T), attend)
    columns = jnp.concatenate(
        [lengths[:, None] - 1, jnp.broadcast_to(P + jnp.arange(T - 1), (len(ids), T - 1))], axis=1
    )
    return np.asarray(decoder.logits(jnp.take_along_axis(hidden, columns[..., None], axis=1)))


def log_probs(logits: np.ndarray, ids: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(logits / temperature) at the ids, in float64."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(-1, keepdims=True)
    scaled -= np.log(np.exp(scaled).sum(-1, keepdims=True))
    return np.take_along_axis(scaled, ids[..., None], axis=-1)[..., 0]


def completions(rollout: Rollout) -> list[list[int]]:
    """Token lists, cut at their lengths."""
    return [
        ids[:n].tolist() for ids, n in zip(rollout.completion_ids, rollout.completion_lengths, strict=True)
    ]


def nearest_boundary(logits: np.ndarray, rollout: Rollout, uniforms: np.ndarray) -> np.ndarray:
    """For every row, how near any of its draws came to another token (temperature 1)."""
    nearest = np.full(len(rollout.completion_ids), np.inf)
    for row, length in enumerate(rollout.completion_lengths):
        for t in range(length):
            probs = np.exp(logits[row, t].astype(np.float64) - logits[row, t].max())
            token = rollout.completion_ids[row, t]
            distance = boundary_distance(probs / probs.sum(), uniforms[row, t], token)
            nearest[row] = min(nearest[row], distance)
    return nearest
