"""The run: warm start, then sample, judge, update, evaluate, save, show.

`train` is the running order and fits on a screen; `prepare` builds what it needs, and raises on every mistake of the
config before anything is compiled.
"""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from grpo_jax import evaluation, experiment, keys, losses, tasks
from grpo_jax.config import Config, OptimizerConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.tokenizers import Tokenizer, load_tokenizer
from grpo_jax.rewards.scoring import Scorer, Scores
from grpo_jax.rollout.engine import NativeEngine, Sampling
from grpo_jax.tasks.iteration import ProblemOrder
from grpo_jax.training import batches, sharding
from grpo_jax.training.checkpoint import Checkpoints
from grpo_jax.training.log_probs import make_log_probs
from grpo_jax.training.metrics import MetricWriter, Progress
from grpo_jax.training.objective import objective_of
from grpo_jax.training.optimizer import make_optimizer
from grpo_jax.training.update import Step, make_log_prob_pass, make_supervised_update, make_update
from grpo_jax.types import Batch, Problem, Rollout, TrainState
