"""Sampling for people: text to `Completion`s, streamed prompt by prompt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from grpo_jax import environments, keys
from grpo_jax.config import Config, RewardFunction
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.rewards import scoring
from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.rollout.background import Background
from grpo_jax.rollout.buckets import power_of_two
from grpo_jax.rollout.stops import split_stops
from grpo_jax.sampling.prompts import from_rows
from grpo_jax.training.draws import sampling_of
from grpo_jax.training.opening import Opened, open_model
from grpo_jax.types import STOPPED, Problem, Rollout

Prompt = str | Problem | Mapping[str, Any]

MODEL_DEFAULTS = {"temperature": 1.0, "max_tokens": 256}
"""For a model that no run made; a run has what it was trained with."""


@dataclass(frozen=True)
class Completion:
    """One answer of the model."""

    place: int
    """Of its prompt in the call."""
    sample: int
    """Its number among the completions of that prompt."""
    prompt: str
    text: str
    tokens: int
    """Tokens sampled, the stop token included."""
    stopped: bool
    """Whether the model ended it, rather than the limit of tokens."""
    log_prob: float
    """Of the whole completion under the model at this temperature."""
    reward: float | None
    """The weighted sum; None where there is no answer or reward, or a reward could not judge."""
    rewards: Mapping[str, float | None]
    """By name of the reward."""


class Sampler:
    """A model, its tokenizer, how it is sampled by default, and the rewards it is judged by."""

    def __init__(self, opened: Opened, *, rewards: Sequence[RewardFunction] = (), slots: int = 64):
        self.opened, self.defaults = opened, defaults(opened.config, opened.tokenizer)
        self._rewards = scoring.build(rewards) if rewards else ()
        self._slots, self._engines = slots, {}

    def __call__(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        samples: int = 1,
        seed: int = 0,
        **settings: Any,
    ) -> list[Completion]:
        """All completions of the prompts; see `stream`."""
        prompts = [prompts] if isinstance(prompts, str | Problem | Mapping) else prompts
        return [c for group in self.stream(prompts, samples=samples, seed=seed, **settings) for c in group]

    def stream(
        self, prompts: Sequence[Prompt], *, samples: int = 1, seed: int = 0, **settings: Any
    ) -> Iterator[list[Completion]]:
        """The completions of each prompt in turn, as soon as they are there.

        Args:
            prompts: texts, asked as they stand; problems with an answer to judge by; or rows, as `prompts.from_rows` reads
                them: one like those of the run's data is asked as the run asks.
            samples: completions per prompt.
            seed: of the random numbers; with it and a prompt's place every completion is reproducible.
            settings: any field of `Sampling`, in place of the defaults.
        """
        sampling = self._sampling(samples, settings)
        problems = self._problems(prompts)
        prompt_ids = [self.opened.tokenizer.encode_prompt(problem.prompt) for problem in problems]
        engine = self._engine(max(map(len, prompt_ids), default=1), sampling)
        key = keys.fold(keys.run_key(seed), "sample")
        background = Background(engine)
        try:
            pending = background.start(self.opened.params, prompt_ids, sampling=sampling, key=key)
            finished: dict[int, Rollout] = {}
            turn = 0
            for place, rows in pending.groups():
                finished[place] = rows
                while turn in finished:
                    yield self._completions(problems[turn], turn, finished.pop(turn))
                    turn += 1
        finally:  # also where the reader stops listening
            background.close()

    def _problems(self, prompts: Sequence[Prompt]) -> list[Problem]:
        located = [(f"prompt {place}", p) for place, p in enumerate(prompts) if isinstance(p, Mapping)]
        rows = iter(from_rows(located, self.opened.config))
        return [
            next(rows) if isinstance(p, Mapping) else Problem(p, "") if isinstance(p, str) else p
            for p in prompts
        ]

    def _sampling(self, samples: int, settings: Mapping[str, Any]) -> Sampling:
        chosen = replace(self.defaults, group_size=samples)
        if settings.get("temperature") == 0:  # the defaults' truncation has no meaning then
            chosen = replace(chosen, top_k=0, top_p=1.0, min_p=0.0)
        try:
            chosen = replace(chosen, **settings)
        except TypeError as error:
            raise ValueError(f"sample: {error}; expected fields of Sampling") from None
        control = self.opened.tokenizer.control_tokens
        ids, texts = split_stops(chosen.stop_strings, control, what="sampling.stop_strings")
        return replace(chosen, stop_ids=(*chosen.stop_ids, *ids), stop_strings=texts)

    def _engine(self, longest: int, sampling: Sampling) -> NativeEngine:
        """An engine for prompts of up to a power of two tokens, so that other prompts compile nothing new."""
        context = self.opened.architecture.max_position
        room = context - longest
        if room < 1:
            raise ValueError(
                f"a prompt has {longest} tokens; expected at most {context - 1}: the model has {context} positions"
            )
        if sampling.max_tokens > room:
            raise ValueError(
                f"max_tokens: got {sampling.max_tokens}, expected at most {room}: the model has {context} positions,"
                f" and the longest prompt has {longest} tokens"
            )
        size = min(power_of_two(longest), context - sampling.max_tokens)
        if size not in self._engines:
            self._engines[size] = NativeEngine(
                self.opened.graphdef,
                max_prompt_length=size,
                slots=self._slots,
                to_text=self.opened.tokenizer.decode,
            )
        return self._engines[size]

    def _completions(self, problem: Problem, place: int, rows: Rollout) -> list[Completion]:
        lengths = rows.completion_lengths
        texts = [
            self.opened.tokenizer.decode(ids[:length].tolist())
            for ids, length in zip(rows.completion_ids, lengths, strict=True)
        ]
        totals, columns = self._judge(problem, texts, lengths.tolist())
        return [
            Completion(
                place=place,
                sample=i,
                prompt=problem.prompt_text,
                text=text,
                tokens=int(lengths[i]),
                stopped=bool(rows.stop_reason[i] == STOPPED),
                log_prob=float(rows.sampler_full_log_probs[i, : lengths[i]].sum()),
                reward=totals[i],
                rewards={name: values[i] for name, values in columns.items()},
            )
            for i, text in enumerate(texts)
        ]

    def _judge(
        self, problem: Problem, texts: Sequence[str], lengths: Sequence[int]
    ) -> tuple[list[float | None], dict[str, list[float | None]]]:
        """The summed reward of each text, and its parts by name."""
        if not self._rewards or not problem.answer:
            return [None] * len(texts), {}
        scores = scoring.score(
            problems=[problem] * len(texts),
            completions=texts,
            rewards=self._rewards,
            lengths=lengths,
            on_failure="unscored",
        )
        totals = [float(t) if scored else None for t, scored in zip(scores.total, scores.scored, strict=True)]
        columns = {
            reward.name: [None if np.isnan(value) else float(value) for value in scores.rewards[:, k]]
            for k, reward in enumerate(self._rewards)
        }
        return totals, columns


def open_sampler(
    path: str | Path,
    *,
    step: int | None = None,
    rewards: Sequence[RewardFunction] | None = None,
    chat: bool = False,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Sampler:
    """The sampler of a run (its policy after `step` rollouts, its settings and rewards) or of a pretrained model.

    Args:
        path, step, chat, dtype: see `training.opening.open_model`.
        rewards: in place of the run's; a model has none of its own, and neither has a run with an environment here,
            where nobody answers: its completions are first turns.
    """
    opened = open_model(path, step=step, chat=chat, dtype=dtype)
    if rewards is None:
        judged = opened.config is not None and not opened.config.rollout.environment
        rewards = opened.config.reward.functions if judged else ()
    return Sampler(opened, rewards=rewards)


def defaults(config: Config | None, tokenizer: Tokenizer) -> Sampling:
    """How a run samples while it trains, or a model by `MODEL_DEFAULTS`."""
    if config is None:
        return Sampling(stop_ids=tuple(tokenizer.stop_ids), **MODEL_DEFAULTS)
    rollout = config.rollout
    environment = environments.build(rollout.environment, rollout.environment_options)
    return sampling_of(rollout, group_size=1, tokenizer=tokenizer, environment=environment)
