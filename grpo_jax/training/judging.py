"""One round of sampling, judged: groups are judged as they finish, while others are still being decoded.

Groups are judged in waves of neighbours, each as soon as all of its groups are there. What a reward function is
called with thus depends on the config alone, never on the clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo_jax.environments import conversations
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.rewards import scoring
from grpo_jax.rollout.background import Pending
from grpo_jax.training import hosts
from grpo_jax.training.journal import Journal
from grpo_jax.training.setup import Example, Run, Started
from grpo_jax.types import Problem, Rollout, joined, rows

WAVES = 8


@dataclass(frozen=True)
class Judged:
    """N completions with their problems, texts and scores."""

    problems: Sequence[Problem]
    rollout: Rollout
    texts: Sequence[str]
    scores: scoring.Scores


def judge(run: Run, started: Started, journal: Journal, *, step: int) -> Judged:
    """Judges a round of `step`, each host its own groups; all hosts get all of it, and wait for the last.

    Raises:
        InputError: a reward failed, on any host, and reward.on_failure is "error".
    """
    with hosts.alike():
        judged = _judge_own(run, started.own_examples(), started.pending, journal, step=step)
    if hosts.count() == 1:
        return judged
    with journal.timer("rollout"):  # it is the slowest host that is waited for
        own = replace(judged, rollout=in_place(judged.rollout, started.places))
        whole = join(hosts.gather(own))
    kept, scores = slice(len(started.examples) * run.config.rollout.group_size), whole.scores
    return Judged(
        problems=whole.problems[kept],
        rollout=rows(whole.rollout, kept),
        texts=whole.texts[kept],
        scores=scoring.Scores(
            rewards=scores.rewards[kept],
            total=scores.total[kept],
            scored=scores.scored[kept],
            failures=scores.failures,
            verdicts=scores.verdicts[kept],
        ),
    )


def in_place(rollout: Rollout, places: range) -> Rollout:
    """The rollout of a call with its groups numbered by their place among the prompts of all hosts."""
    return replace(rollout, group_ids=(rollout.group_ids + places.start).astype(np.int32))


def _judge_own(
    run: Run, examples: Sequence[Example], pending: Pending, journal: Journal, *, step: int
) -> Judged:
    """Judges the groups of a call, one per example; waits for the call to end."""
    size = -(-len(examples) // WAVES)
    waves = [range(first, min(first + size, len(examples))) for first in range(0, len(examples), size)]
    finished: dict[int, Rollout] = {}
    judged: list[Judged] = []
    failures = run.config.reward.on_failure == "unscored"
    rewards = journal.verdicts.remembered(run.rewards, step=step, failures=failures)
    with journal.timer("rollout"):
        for place, group in pending.groups():
            finished[place] = group
            while len(judged) < len(waves) and finished.keys() >= set(waves[len(judged)]):
                with journal.timer("reward"):
                    judged.append(
                        _judge_wave(run, examples, [finished[i] for i in waves[len(judged)]], rewards)
                    )
    return replace(join(judged), rollout=pending.result())


def _judge_wave(
    run: Run,
    examples: Sequence[Example],
    groups: Sequence[Rollout],
    rewards: Sequence[scoring.WeightedReward],
) -> Judged:
    rollout = joined(groups)
    problems, texts = judged_texts(
        run.tokenizer, [examples[place].problem for place in rollout.group_ids], rollout
    )
    scores = scoring.score(
        problems=problems,
        completions=texts,
        rewards=rewards,
        lengths=rollout.completion_lengths.tolist(),
        on_failure=run.config.reward.on_failure,
    )
    return Judged(problems, rollout, texts, scores)


def join(parts: Sequence[Judged]) -> Judged:
    """The rows of all parts, in order; group ids as they are."""
    return Judged(
        problems=[problem for part in parts for problem in part.problems],
        rollout=joined([part.rollout for part in parts]),
        texts=[text for part in parts for text in part.texts],
        scores=scoring.join([part.scores for part in parts]),
    )


def judged_texts(
    tokenizer: Tokenizer, problems: Sequence[Problem], rollout: Rollout
) -> tuple[list[Problem], list[str]]:
    """What the rewards are given: [N] problems, and the texts that are judged.

    The text is the completion's. With an environment it is the policy's last turn, and the problem's metadata has the
    whole conversation as `turns`.
    """
    decode, lengths = tokenizer.decode, rollout.completion_lengths
    ids = [row[:length] for row, length in zip(rollout.completion_ids, lengths, strict=True)]
    if rollout.sampled is None:
        return list(problems), [decode(row.tolist()) for row in ids]
    sampled = [row[:length] for row, length in zip(rollout.sampled, lengths, strict=True)]
    turns = [conversations.turns(row, own, decode) for row, own in zip(ids, sampled, strict=True)]
    with_turns = [
        replace(problem, metadata={**problem.metadata, "turns": said})
        for problem, said in zip(problems, turns, strict=True)
    ]
    last = [conversations.judged_ids(row, own) for row, own in zip(ids, sampled, strict=True)]
    return with_turns, [decode(row.tolist()) for row in last]
