"""Held-out accuracy of the policy of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grpo_jax import evaluation, keys
from grpo_jax.rewards import scoring
from grpo_jax.training import hosts
from grpo_jax.training.collect import held, sample, sampling_of
from grpo_jax.training.journal import Journal
from grpo_jax.training.judging import judged_texts
from grpo_jax.training.setup import Run
from grpo_jax.types import TRUNCATED, Problem, TrainState


def evaluate(run: Run, state: TrainState, journal: Journal) -> evaluation.Evaluation:
    """Held-out accuracy of the policy as it is; draws nothing from the training stream of keys."""
    hosts.meet()  # before the first evaluation a host has had files to open, and loading may be a program of all hosts
    options = run.config.evaluation
    examples = run.held_out[: options.problems or None]
    names = [reward.name for reward in run.config.reward.functions]
    success = run.rewards[names.index(options.success) if options.success else 0]
    sampling = sampling_of(run, temperature=options.temperature, group_size=options.samples)
    size = run.config.rollout.batch_size
    with journal.timer("evaluate"):
        problems, texts, lengths, truncated = [], [], [], []
        with held(run, state):
            for first in range(0, len(examples), size):
                key = keys.fold(state.key, "evaluation", first)
                part = examples[first : first + size]
                rollout = sample(run, part, sampling, key=key)
                asked, said = judged_texts(
                    run.tokenizer, [part[group].problem for group in rollout.group_ids], rollout
                )
                problems, texts = problems + asked, texts + said
                lengths += rollout.completion_lengths.tolist()
                truncated += (rollout.stop_reason == TRUNCATED).tolist()
        with hosts.alike():
            own = [min(place, len(texts) - 1) for place in hosts.share(len(texts))]
            scores = scoring.score(
                problems=[problems[i] for i in own],
                completions=[texts[i] for i in own],
                rewards=[success],
                lengths=[lengths[i] for i in own],
                on_failure=run.config.reward.on_failure,
            )
        verdicts = np.concatenate([part.rewards for part in hosts.gather(scores)])[: len(texts)]
        table = (len(examples), options.samples)
        result = evaluation.summarize(
            [e.problem for e in examples],
            texts=np.reshape(np.array(texts, object), table),
            lengths=np.reshape(lengths, table),
            truncated=np.reshape(truncated, table),
            scores=verdicts.reshape(table),
        )
        if run.environment is not None:
            result = replace(result, completions=with_turns(result.completions, problems))
    journal.evaluation(result, step=int(state.step))
    return result


def with_turns(completions: Sequence[Mapping[str, Any]], problems: Sequence[Problem]) -> tuple[dict, ...]:
    """The rows of an evaluation with the conversations that their completions end."""
    return tuple(
        {**row, "turns": [turn._asdict() for turn in problem.metadata["turns"]]}
        for row, problem in zip(completions, problems, strict=True)
    )
