"""From problems to a judged rollout: what the policy update is made of.

collect      sample, judge, advantages: a `Collected`
sample       completions of examples under a state's policy
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from grpo_jax import keys, tasks
from grpo_jax.models import lora
from grpo_jax.rewards import scoring
from grpo_jax.rollout.engine import Sampling
from grpo_jax.training import batches
from grpo_jax.training.journal import Journal
from grpo_jax.training.metrics import rollout_metrics
from grpo_jax.training.setup import Example, Run
from grpo_jax.types import Batch, Rollout, TrainState


@dataclass(frozen=True)
class Collected:
    """One rollout, judged."""

    rollout: Rollout
    batch: Batch
    """What the update reads, advantages and masks included."""
    metrics: Mapping[str, float]
    """rewards/, length/, advantages/ and history metrics of the rollout."""


def collect(run: Run, state: TrainState, journal: Journal, *, step: int) -> tuple[TrainState, Collected]:
    """Samples and judges the problems at the state's cursor, for `step`; moves the cursor and the history on."""
    config = run.config
    with journal.timer("rollout"):
        examples = next_examples(run, state, config.rollout.batch_size)
        sampling = sampling_of(
            run, temperature=config.rollout.temperature, group_size=config.rollout.group_size
        )
        rollout = sample(run, state, examples, sampling, key=keys.fold(state.key, "rollout", step))
        texts = decode(run, rollout)
    with journal.timer("reward"):
        problems = [examples[group].problem for group in rollout.group_ids]
        scores = scoring.score(
            problems=problems,
            completions=texts,
            rewards=run.rewards,
            lengths=rollout.completion_lengths.tolist(),
            on_failure=config.reward.on_failure,
        )
        advantages, history, group_metrics = run.advantages(
            jnp.asarray(scores.total),
            jnp.asarray(scores.scored),
            jnp.asarray(rollout.group_ids),
            state.history,
        )
        advantages = np.asarray(advantages)
    if scores.failures:  # reward.on_failure is "unscored": what was left out should not go unseen
        journal.note(
            f"step {step}: {len(scores.failures)} judgements failed, the first: {scores.failures[0]}"
        )
    journal.samples(
        step=step,
        prompts=[problem.prompt_text for problem in problems],
        completions=texts,
        rewards=scores.total,
        advantages=advantages,
        stop_reasons=rollout.stop_reason,
    )
    sampled = rollout_metrics(
        rewards=scores.rewards,
        names=[reward.name for reward in run.rewards],
        total=scores.total,
        scored=scores.scored,
        lengths=rollout.completion_lengths,
        stop_reasons=rollout.stop_reason,
        advantages=advantages,
    )
    batch = batches.policy_batch(
        rollout, advantages=advantages, scored=scores.scored, mask_truncated=run.objective.mask_truncated
    )
    state = replace(state, history=history, cursor=state.cursor + config.rollout.batch_size)
    return state, Collected(rollout, batch, {**group_metrics, **sampled})


def next_examples(run: Run, state: TrainState, count: int) -> list[Example]:
    """The training problems at the state's cursor."""
    return tasks.batch(
        run.train, cursor=int(state.cursor), batch_size=count, seed=run.config.run.seed, mixture=run.mixture
    )


def sampling_of(run: Run, *, temperature: float, group_size: int) -> Sampling:
    """The sampler's settings, for training or evaluation."""
    options = run.config.rollout
    greedy = temperature == 0  # takes the likeliest token, and nothing is left to truncate
    return Sampling(
        temperature=temperature,
        top_k=0 if greedy else options.top_k,
        top_p=1.0 if greedy else options.top_p,
        max_tokens=options.max_completion_length,
        group_size=group_size,
        stop_ids=run.tokenizer.stop_ids,
    )


def sample(run: Run, state: TrainState, examples: Sequence[Example], sampling: Sampling, *, key) -> Rollout:
    """Completions of the examples' prompts under the state's policy."""
    run.engine.load(lora.join(state.params, state.frozen))
    return run.engine.generate([e.prompt_ids for e in examples], sampling=sampling, key=key)


def decode(run: Run, rollout: Rollout) -> list[str]:
    """The text of every completion."""
    return [
        run.tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(rollout.completion_ids, rollout.completion_lengths, strict=True)
    ]
