"""From the loss section of a config to an objective: the one place where names of losses become functions."""

from functools import partial

from grpo_jax import losses
from grpo_jax.config import LossConfig
from grpo_jax.resolve import resolve
