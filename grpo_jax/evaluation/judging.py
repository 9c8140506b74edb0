"""A suite's completions, sampled in calls of a fixed number of problems.

A problem's samples are judged and on disk as soon as all of them have ended, while others are being decoded.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from grpo_jax import keys
from grpo_jax.environments import conversations
from grpo_jax.evaluation.jobs import Job
from grpo_jax.evaluation.ledger import Ledger, Row
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.rewards import scoring
from grpo_jax.rollout import Engine, NativeEngine
from grpo_jax.rollout.background import Background
from grpo_jax.rollout.turns import Conversing
from grpo_jax.tasks.mixing import as_number
from grpo_jax.training.judging import judged_texts
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
    samples = job.sampling.group_size
    calls = [problems for problems in job.calls if not ledger.has(problems.tolist(), samples)]
    if not calls:
        return
    with closing(Background(_engine(job, graphdef, tokenizer))) as sampler, sampler.holding(params):
        for problems in calls:
            # The whole call, even if a part of it is judged: in another one draws would be rounded otherwise.
            pending = sampler.start(
                None,  # those that are held
                [job.prompt_ids[i] for i in problems],
                sampling=job.sampling,
                **_call(job, problems, tokenizer),
            )
            for place, rollout in pending.groups():
                problem = int(problems[place])
                if not ledger.has([problem], samples):
                    ledger.write(judged(job, problem, rollout, tokenizer))
                    show(len(ledger) // samples, {name: ledger.mean(name) for name in ("correct", "length")})


def _engine(job: Job, graphdef: Any, tokenizer: Tokenizer) -> Engine:
    """The sampler; where an environment answers, one that takes turns."""
    longest, talk = max(map(len, job.prompt_ids)), job.suite.talk
    if talk is None and not job.sampling.stop_strings:
        return NativeEngine(graphdef, max_prompt_length=longest, slots=job.slots)
    engine = NativeEngine(
        graphdef,
        # A later turn goes on from all that was said.
        max_prompt_length=longest + (job.sampling.max_tokens if talk else 0),
        slots=job.slots,
        chunk=16,  # a text that ends a turn or a completion is only seen when the host looks
        to_text=tokenizer.decode,
    )
    if talk is None:
        return engine
    return Conversing(engine, max_turns=talk.max_turns, prompt_size=longest)


def _call(job: Job, problems: np.ndarray, tokenizer: Tokenizer) -> dict[str, Any]:
    """The noise of a call of these problems, and who answers."""
    suite = job.suite
    key = keys.fold(keys.run_key(job.seed), "evaluation", suite.name)
    if suite.talk is None:
        return {"key": key, "prompt_indices": problems}
    about = [suite.problems[i] for i in problems for _ in range(job.sampling.group_size)]
    # Conversations are numbered within their call.
    return {
        "key": keys.fold(key, "call", int(problems[0])),
        "reply": conversations.reply_with(suite.talk.environment, about, tokenizer),
    }


def judged(job: Job, problem: int, rollout: Rollout, tokenizer: Tokenizer) -> list[Row]:
    """One row for each of a problem's completions."""
    suite, lengths = job.suite, rollout.completion_lengths.tolist()
    asked, texts = judged_texts(tokenizer, [suite.problems[problem]] * len(lengths), rollout)
    scores = scoring.score(
        problems=asked,
        completions=texts,
        rewards=[suite.reward],
        lengths=lengths,
        on_failure=suite.on_failure,
    )
    return [
        {
            "problem": problem,
            "sample": n,
            **_stated(asked[n]),
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
    turns = problem.metadata.get("turns")
    values = (as_number(problem.metadata.get(name)) for name in DIFFICULTY)
    return {
        "prompt": problem.prompt_text,
        "answer": problem.answer,
        **({"turns": [turn._asdict() for turn in turns]} if turns else {}),
        "difficulty": next((value for value in values if value is not None), None),
    }
