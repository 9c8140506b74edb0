"""What is sampled of a suite, and everything that decides how it turns out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import numpy as np

from grpo_jax.evaluation.ledger import Ledger
from grpo_jax.evaluation.subject import Subject, checksum
from grpo_jax.evaluation.suites import Suite
from grpo_jax.rollout import Sampling
from grpo_jax.rollout.stops import split_stops
from grpo_jax.training import draws
from grpo_jax.training.records import finite


@dataclass(frozen=True)
class Job:
    """One suite, ready to sample: what decides every completion, and nothing that is only of interest."""

    suite: Suite
    prompt_ids: Sequence[Sequence[int]]
    sampling: Sampling
    seed: int
    slots: int
    """Completions decoded at a time."""

    @property
    def digest(self) -> str:
        """Equal for equal problems whose prompts have equal tokens."""
        text = self.suite.digest + repr([list(ids) for ids in self.prompt_ids])
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def calls(self) -> list[np.ndarray]:
        """The problems of each call of the sampler: about two completions for every slot, so that most stay busy."""
        count = len(self.prompt_ids)
        per_call = max(1, -(-2 * self.slots // self.sampling.group_size))
        return np.array_split(np.arange(count), -(-count // per_call))


def sampling_of(
    subject: Subject,
    *,
    samples: int | None,
    temperature: float | None,
    **settings: float | None,
) -> Sampling:
    """How completions are drawn; None is what the run's own evaluations do.

    Args:
        subject: what is sampled.
        samples: completions per problem.
        temperature: of sampling.
        settings: top_k, top_p, min_p and repetition_penalty.
    """
    config = subject.opened.config
    if temperature is None:
        temperature = config.evaluation.temperature if config else 1.0
    if samples is None:
        samples = 1 if temperature == 0 else config.evaluation.samples if config else 4
    if temperature == 0 and samples > 1:
        raise ValueError(f"samples: got {samples}, expected 1: at temperature 0 all samples are the same")
    if config is None:
        own = Sampling(temperature=temperature, group_size=samples)
    else:
        own = draws.sampling_of(config.rollout, temperature=temperature, group_size=samples)
    given = {name: value for name, value in settings.items() if value is not None}
    return replace(own, stop_ids=tuple(subject.opened.tokenizer.stop_ids), **given)


def make_jobs(
    subject: Subject,
    wanted: Sequence[Suite],
    sampling: Sampling,
    *,
    max_tokens: int | None,
    seed: int,
    slots: int,
) -> tuple[list[Job], list[str]]:
    """What to sample of each suite, and a note for each whose recommended length does not fit the model."""
    jobs, notes = [], []
    context = subject.opened.architecture.max_position
    for suite in wanted:
        ids = [subject.opened.tokenizer.encode_prompt(problem.prompt) for problem in suite.problems]
        limit = fit(suite, ids, max_tokens=max_tokens, context=context)
        if max_tokens is None and limit < suite.max_completion_length:
            notes.append(
                f"{suite.name}: completions of {limit} tokens at most, as the model's context of {context} has no "
                f"room for the recommended {suite.max_completion_length}."
            )
        stop_ids, texts = split_stops(
            suite.stop_strings, subject.opened.tokenizer.control_tokens, what=f"{suite.name}: stop_strings"
        )
        drawn = replace(
            sampling,
            max_tokens=limit,
            stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *stop_ids))),
            stop_strings=texts,
        )
        jobs.append(Job(suite, ids, drawn, seed, slots))
    return jobs, notes


def fit(suite: Suite, prompt_ids: Sequence[Sequence[int]], *, max_tokens: int | None, context: int) -> int:
    """The most tokens of a completion: as asked, or the suite's recommendation if the model's context has room.

    Raises:
        ValueError: what was asked for does not fit, or a prompt leaves no room at all.
    """
    longest = max(map(len, prompt_ids))
    room = context - longest
    if room < 1:
        raise ValueError(
            f"{suite.name}: a prompt has {longest} tokens, and the model's context has {context}"
        )
    if max_tokens is not None and not 1 <= max_tokens <= room:
        raise ValueError(
            f"max_tokens: got {max_tokens}, but {suite.name} has a prompt of {longest} tokens and the model's "
            f"context is {context}; expected 1 to {room}"
        )
    return max_tokens or min(suite.max_completion_length, room)


def open_ledger(job: Job, subject: Subject, folder: Path) -> Ledger:
    """Where the job's rows go: a folder of its own in `folder`, whose settings are everything that decides them."""
    opened, sampling = subject.opened, job.sampling
    settings = {
        "task": job.suite.name,
        "step": opened.step,
        "parameters": checksum(opened.params),
        "dtype": opened.architecture.dtype,
        "problems": len(job.prompt_ids),
        "samples": sampling.group_size,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": [[id, finite(value)] for id, value in sorted(sampling.logit_bias.items())],
        "forbidden_ids": sorted(sampling.forbidden_ids),
        "stop_strings": list(job.suite.stop_strings),
        "max_tokens": sampling.max_tokens,
        "seed": job.seed,
        "chat": getattr(opened.tokenizer, "chat", False),
        "slots": job.slots,
        "prompts": job.digest,
        "judge": [
            job.suite.judge.name,
            dict(job.suite.judge.options),
            *([job.suite.judge.after] if job.suite.judge.after else []),
        ],
        "votes": job.suite.vote is not None,
        "environment": job.suite.talk and job.suite.talk.described,
    }
    try:
        release = version("grpo_jax")
    except PackageNotFoundError:
        release = "not installed"
    made_by = {
        "model": subject.name,
        "grpo_jax": release,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }
    return Ledger(folder / job.suite.name, settings, made_by=made_by)
