"""A run and a pretrained model that nothing was trained for: their parameters are random, their folders are real."""

import os
import signal
from dataclasses import replace
from pathlib import Path

from flax import nnx

from grpo_jax.config import EvaluationConfig, RewardConfig, RewardFunction, RolloutConfig, WarmStartConfig
from grpo_jax.models import exporting
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.tokenizers import CharacterTokenizer
from grpo_jax.training import loop, setup
from tests.tiny import MODEL, tiny, vowels

KILL_AFTER = "GRPO_JAX_TEST_KILL_AFTER"
"""Environment variable: the judgement before which the process is killed."""

judged = 0


def deadly(problem, completion):
    """`vowels`, in a process that may be killed in the middle of an evaluation."""
    global judged
    judged += 1
    if judged > int(os.environ.get(KILL_AFTER, "1000000")):
        os.kill(os.getpid(), signal.SIGKILL)
    return vowels(problem, completion)


def write_run(folder: Path, **changes) -> Path:
    """A run with checkpoints after 0 and 1 steps, the second of other parameters; success is `deadly`."""
    config = tiny(
        folder,
        reward=RewardConfig(functions=(RewardFunction("tests.evaluation.models:deadly"),)),
        rollout=RolloutConfig(batch_size=4, group_size=4, max_prompt_length=8, max_completion_length=4),
        warm_start=WarmStartConfig(steps=0),
        evaluation=EvaluationConfig(samples=3, temperature=0.9),
    )
    run = setup.prepare(replace(config, **changes))
    state = setup.initial_state(run)
    loop.save(run, state)
    others = nnx.state(Decoder(run.policy.config, rngs=nnx.Rngs(5)))
    loop.save(run, replace(state, params=others, step=state.step + 1))
    run.checkpoints.close()
    return run.folder


def write_model(folder: Path, *, context: int = 256) -> Path:
    """A Transformers folder with room for real questions, and the character tokenizer beside it."""
    tokenizer = CharacterTokenizer()
    config = replace(MODEL, vocab_size=tokenizer.vocab_size, max_position=context)
    exporting.export_model(folder, Decoder(config, rngs=nnx.Rngs(7)), tokenizer)
    return folder
