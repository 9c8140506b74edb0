"""How a completion is judged.

Rewards are functions of (problem, completion text); `build` makes them from a config, `score` applies them.
"""

from grpo_jax.rewards.scoring import Scores, WeightedReward, build, score

__all__ = ["Scores", "WeightedReward", "build", "score"]
