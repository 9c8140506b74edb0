"""The sampling loop: completions and their log-probabilities from prompts and parameters."""

from grpo_jax.rollout.engine import Engine, NativeEngine
from grpo_jax.rollout.replay import RecordingEngine, ReplayEngine
from grpo_jax.rollout.settings import Sampling

__all__ = ["Engine", "NativeEngine", "RecordingEngine", "ReplayEngine", "Sampling"]
