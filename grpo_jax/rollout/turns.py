"""Conversations: the policy writes a turn, an environment answers, until it has nothing more to say.

    prompt | turn ▸ answer ▸ turn ▸ answer ▸ … ▸ turn |
             └── sampled ──┘ and not, in one completion

A conversation is one completion: the ids that were sampled and the ids of the answers, as they were, in a row.
Nothing the policy wrote is ever encoded again. The history of a turn is read anew as its prompt, all unfinished
conversations together; noise still depends on (completion key, position in the completion) alone, so how a
completion is cut into turns changes no number that is drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Array, Key

from grpo_jax.rollout.engine import Engine, OnGroup
from grpo_jax.rollout.settings import Sampling
from grpo_jax.types import STOPPED, TRUNCATED, InputError, Rollout, rows

Reply = Callable[[int, Sequence[int]], Sequence[int] | None]
"""(conversation, the ids of its last turn) -> the ids of the answer; None ends the conversation."""

PER_TOKEN = ("completion_ids", "sampler_log_probs", "sampler_full_log_probs")


def generate_turns(
    engine: Engine,
    prompt_ids: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    key: Key[Array, ""],
    reply: Reply,
    max_turns: int,
    prompt_size: int,
    prompt_indices: Sequence[int] | None = None,
) -> Rollout:
    """`sampling.group_size` conversations from every prompt, prompt-major.

    A conversation has stopped when the environment ended it, and is truncated when it was to go on but had used up its
    `max_turns` turns or its `sampling.max_tokens` tokens, answers included. An answer that leaves no room for another
    turn is not kept.

    Args:
        engine: reads prompts of up to prompt_size + sampling.max_tokens tokens, and goes on with completions.
        prompt_ids: [B] prompts.
        sampling: how a turn is drawn, and what ends it. key: the call's own.
        reply: called once for each turn that ended by itself, in order of conversations.
        max_turns: most turns of a conversation.
        prompt_size: width of `Rollout.prompt_ids` (P).
        prompt_indices: [B] what the prompts are called in the random numbers; their places if not given.

    Raises:
        InputError: an answer is empty: two turns would be one.
    """
    indices = np.arange(len(prompt_ids)) if prompt_indices is None else np.asarray(prompt_indices)
    named = {} if prompt_indices is None else {"prompt_indices": indices}
    first = engine.generate(prompt_ids, sampling=sampling, key=key, **named)
    talk = _Talk.begin(first, prompt_size)
    going = np.arange(len(talk.lengths))
    for turn in range(1, max_turns + 1):
        going = talk.answer(going, reply, last=turn == max_turns)
        if not len(going):
            break
        more = engine.generate(
            talk.history(going),
            sampling=replace(sampling, group_size=1),
            key=key,
            prompt_indices=indices[going // sampling.group_size],
            sample_indices=going % sampling.group_size,
            start_positions=talk.lengths[going],
            max_tokens=sampling.max_tokens - talk.lengths[going],
        )
        talk.extend(going, more)
    return replace(talk.rollout, sampled=talk.sampled)


class Conversing:
    """An engine whose completions may be conversations: `generate` takes a `reply` besides.

    Without one it is the engine it is made of. With one, groups are finished all at once, at the end.
    """

    def __init__(self, engine: Engine, *, max_turns: int, prompt_size: int):
        self.engine, self._max_turns, self._prompt_size = engine, max_turns, prompt_size

    @property
    def programs(self) -> set[tuple[str, str]]:
        """Every program and its sizes that was needed so far."""
        return self.engine.programs

    def load(self, params: Any) -> None:
        self.engine.load(params)

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        key: Key[Array, ""],
        reply: Reply | None = None,
        on_group: OnGroup | None = None,
        **options: Any,
    ) -> Rollout:
        if reply is None:
            return self.engine.generate(prompt_ids, sampling=sampling, key=key, on_group=on_group, **options)
        rollout = generate_turns(
            self.engine,
            prompt_ids,
            sampling=sampling,
            key=key,
            reply=reply,
            max_turns=self._max_turns,
            prompt_size=self._prompt_size,
            **options,  # prompt_indices is the one that conversations take
        )
        for place in range(len(prompt_ids) if on_group else 0):
            first = place * sampling.group_size
            on_group(place, rows(rollout, slice(first, first + sampling.group_size)))
        return rollout

    def close(self) -> None:
        self.engine.close()


@dataclass
class _Talk:
    """N conversations so far; the arrays of `rollout` are written in place."""

    rollout: Rollout
    sampled: np.ndarray  # [N, T]
    turn_starts: np.ndarray  # [N], where the last turn begins

    @classmethod
    def begin(cls, first: Rollout, prompt_size: int) -> "_Talk":
        own = {
            name: np.array(getattr(first, name)) for name in (*PER_TOKEN, "completion_lengths", "stop_reason")
        }
        rollout = replace(first, prompt_ids=first.prompt_ids[:, :prompt_size], **own)
        columns = np.arange(rollout.completion_ids.shape[1])
        return cls(rollout, columns < rollout.completion_lengths[:, None], np.zeros_like(own["stop_reason"]))

    @property
    def lengths(self) -> np.ndarray:
        return self.rollout.completion_lengths

    def answer(self, going: np.ndarray, reply: Reply, *, last: bool) -> np.ndarray:
        """Appends the environment's answers; returns the conversations that go on."""
        ids, room = self.rollout.completion_ids, self.rollout.completion_ids.shape[1] - self.lengths
        asked = []
        for n in going[self.rollout.stop_reason[going] == STOPPED]:
            answer = reply(int(n), ids[n, self.turn_starts[n] : self.lengths[n]].tolist())
            if answer is None:
                continue
            if not len(answer):
                raise InputError(f"the environment's answer in conversation {n} has no tokens; None ends it")
            if last or len(answer) >= room[n]:
                self.rollout.stop_reason[n] = TRUNCATED
                continue
            ids[n, self.lengths[n] : self.lengths[n] + len(answer)] = answer
            self.lengths[n] += len(answer)
            self.turn_starts[n] = self.lengths[n]
            asked.append(n)
        return np.array(asked, int)

    def history(self, going: np.ndarray) -> list[list[int]]:
        """Prompt and completion so far, as a prompt."""
        rollout = self.rollout
        return [
            [
                *rollout.prompt_ids[n, : rollout.prompt_lengths[n]].tolist(),
                *rollout.completion_ids[n, : self.lengths[n]].tolist(),
            ]
            for n in going
        ]

    def extend(self, going: np.ndarray, more: Rollout) -> None:
        """Appends another turn to conversations."""
        for row, n in enumerate(going):
            count = int(more.completion_lengths[row])
            here = slice(self.lengths[n], self.lengths[n] + count)
            for name in PER_TOKEN:
                getattr(self.rollout, name)[n, here] = getattr(more, name)[row, :count]
            self.sampled[n, here] = True
            self.lengths[n] += count
            self.rollout.stop_reason[n] = more.stop_reason[row]
