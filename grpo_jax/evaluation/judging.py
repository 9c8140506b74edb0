"""A suite's completions, sampled in calls of a fixed number of problems.

A problem's samples are judged and on disk as soon as all of them have ended, while others are being decoded.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from grpo_jax import keys
from grpo_jax.evaluation.jobs import Job
from grpo_jax.evaluation.ledger import Ledger, Row
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.rewards import scoring
from grpo_jax.rollout import NativeEngine
from grpo_jax.rollout.background import Background
from grpo_jax.tasks.mixing import as_number
from grpo_jax.types import TRUNCATED, Problem, Rollout

DIFFICULTY = ("difficulty", "level")
"""Fields of the metadata that say how difficult a problem is."""


def judge(
    job: Job,
    ledger: Ledger,
    *,
    model: tuple[Any, Any],
    tokenizer: Tokenizer,
    show: Callable[[int, Mapping[str, float]], None] = lambda done, numbers: None,
) -> None:
    """Fills the ledger with every completion that it lacks.

    Args:
        job: what to sample.
        ledger: where rows go.
        model: (structure, parameters) of the decoder.
        tokenizer: turns tokens into the text that is judged.
        show: called with the problems that are done and the numbers so far, after each.
    """
    graphdef, params = model
    engine = NativeEngine(graphdef, max_prompt_length=max(map(len, job.prompt_ids)), slots=job.slots)
    key = keys.fold(keys.run_key(job.seed), "evaluation", job.suite.name)
    samples = job.sampling.group_size
    with closing(Background(engine)) as sampler:
        for problems in job.calls:
            if ledger.has(problems.tolist(), samples):
                continue
            # The whole call, even if a part of it is judged: in another one draws would be rounded otherwise.
            pending = sampler.start(
                params,
                [job.prompt_ids[i] for i in problems],
                sampling=job.sampling,
                key=key,
                prompt_indices=problems,
            )
            for place, rollout in pending.groups():
                problem = int(problems[place])
                if not ledger.has([problem], samples):
                    ledger.write(judged(job, problem, rollout, tokenizer))
                    show(len(ledger) // samples, {name: ledger.mean(name) for name in ("correct", "length")})


def judged(job: Job, problem: int, rollout: Rollout, tokenizer: Tokenizer) -> list[Row]:
    """One row for each of a problem's completions."""
    suite, lengths = job.suite, rollout.completion_lengths.tolist()
    asked = suite.problems[problem]
    texts = [
        tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(rollout.completion_ids, lengths, strict=True)
    ]
    scores = scoring.score(
        problems=[asked] * len(texts),
        completions=texts,
        rewards=[suite.reward],
        lengths=lengths,
        on_failure=suite.on_failure,
    )
    return [
        {
            "problem": problem,
            "sample": n,
            **_stated(asked),
            "completion": text,
            "extracted": suite.vote(text) if suite.vote else None,
            "verdict": scores.verdicts[n].get(suite.reward.name),
            "score": float(scores.rewards[n, 0]) if scores.scored[n] else None,
            "correct": bool(scores.scored[n] and scores.rewards[n, 0] >= 1),
            "length": lengths[n],
            "truncated": bool(rollout.stop_reason[n] == TRUNCATED),
        }
        for n, text in enumerate(texts)
    ]


def _stated(problem: Problem) -> dict[str, Any]:
    values = (as_number(problem.metadata.get(name)) for name in DIFFICULTY)
    return {
        "prompt": problem.prompt_text,
        "answer": problem.answer,
        "difficulty": next((value for value in values if value is not None), None),
    }
