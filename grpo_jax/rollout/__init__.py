"""The sampling loop: completions and their log-probabilities from prompts and parameters."""

from grpo_jax.rollout.engine import NativeEngine
from grpo_jax.rollout.settings import Sampling

__all__ = ["NativeEngine", "Sampling"]
