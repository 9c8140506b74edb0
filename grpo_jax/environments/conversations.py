"""Between an environment, which speaks text, and the sampler, which speaks token ids.

reply_with     the environment's answers, as ids
demonstration  a conversation to learn from, as ids and a mask
turns          who wrote what, from a completion's ids
judged_ids     the part of a completion that is judged
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import numpy as np

from grpo_jax.environments.interface import ROLES, Environment
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.types import InputError, Message, Problem


def reply_with(
    environment: Environment, problems: Sequence[Problem], tokenizer: Tokenizer
) -> Callable[[int, Sequence[int]], Sequence[int] | None]:
    """What `rollout.turns` asks of the environment. Conversation n is about problem n.

    The state of a conversation lives here, between its turns.
    """
    states: dict[int, Any] = {}

    def reply(n: int, turn_ids: Sequence[int]) -> Sequence[int] | None:
        text = _heard(turn_ids, environment, tokenizer)
        with _blamed(environment, text):
            if n not in states:
                states[n] = environment.reset(problems[n])
            step = environment.step(states[n], text)
        if not isinstance(step, tuple) or len(step) != 2:
            raise InputError(f"rollout.environment: step gave {step!r}, expected a Step(state, answer)")
        states[n], answer = step
        if answer is None:
            return None
        if not isinstance(answer, Message) or not isinstance(answer.content, str):
            raise InputError(
                f"rollout.environment: step answered {answer!r}, expected a Message, whose content is text, or None at "
                "the end"
            )
        if answer.role not in ROLES:
            raise InputError(
                f"rollout.environment: step answered with the role {answer.role!r}, expected one of {', '.join(ROLES)}"
            )
        with _blamed(environment, text):
            return tokenizer.encode_reply(problems[n].prompt, turn_ids, answer)

    return reply


def _heard(turn_ids: Sequence[int], environment: Environment, tokenizer: Tokenizer) -> str:
    """A turn as text, with the stop string that ended it, also where that is a control token, which text leaves out."""
    control = tokenizer.control_tokens
    written = {control[stop]: stop for stop in environment.stop_strings if stop in control}
    return tokenizer.decode(turn_ids) + (written.get(turn_ids[-1], "") if len(turn_ids) else "")


def _written(text: str, stop_strings: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Ids of a turn as the policy writes it: it ends with a stop token, unless a stop string has ended it before."""
    stops = [stop for stop in stop_strings if text.endswith(stop)]
    for stop in stops:
        if stop in tokenizer.control_tokens:
            return [*tokenizer.encode_text(text.removesuffix(stop)), tokenizer.control_tokens[stop]]
    return tokenizer.encode_text(text) if stops else tokenizer.encode_completion(text)


@contextmanager
def _blamed(environment: Environment, text: str) -> Iterator[None]:
    """What goes wrong inside is the environment's mistake, on this turn."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"rollout.environment: {type(environment).__name__} failed after the turn {text!r}: "
            f"{type(error).__name__}: {error}"
        ) from error


def demonstration(
    environment: Environment,
    problem: Problem,
    tokenizer: Tokenizer,
    *,
    limit: int,
    stop_strings: Sequence[str] = (),
) -> tuple[list[int], list[bool]]:
    """Ids of the conversation that the environment demonstrates, answers included, and which the policy would write.

    `stop_strings` are those of the run, which end a turn besides the environment's.

    Raises:
        InputError: the environment ends the conversation before or goes on after the demonstrated turns, or they have
            more than `limit` tokens.
    """
    try:
        texts = environment.demonstrate(problem)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"rollout.environment: demonstrate failed: {type(error).__name__}: {error}"
        ) from error
    if (
        not isinstance(texts, Sequence)
        or isinstance(texts, str)
        or not texts
        or not all(isinstance(text, str) for text in texts)
    ):
        raise InputError(
            f"rollout.environment: demonstrate gave {texts!r}, expected a sequence of texts, one a turn"
        )
    reply, ids, sampled = reply_with(environment, [problem], tokenizer), [], []
    for number, text in enumerate(texts, start=1):
        turn = _written(text, (*environment.stop_strings, *stop_strings), tokenizer)
        answer = reply(0, turn)
        if (answer is None) != (number == len(texts)):
            raise InputError(
                f"rollout.environment: the demonstration has {len(texts)} turns, but turn {number}, {text!r}, "
                + ("ends the conversation" if answer is None else "is not the last")
            )
        answer = answer or []
        ids += [*turn, *answer]
        sampled += [True] * len(turn) + [False] * len(answer)
    if len(ids) > limit:
        raise InputError(
            f"rollout.max_completion_length: got {limit}, but a demonstration has {len(ids)} tokens: {texts}"
        )
    return ids, sampled


def turns(
    ids: np.ndarray, sampled: np.ndarray, decode: Callable[[Sequence[int]], str]
) -> tuple[Message, ...]:
    """A completion as messages: the policy's are "assistant", what it was told is "environment", as it read it."""
    pairs = zip(ids.tolist(), sampled.tolist(), strict=True)
    return tuple(
        Message("assistant" if own else "environment", decode([id for id, _ in run]))
        for own, run in groupby(pairs, key=lambda pair: pair[1])
    )


def judged_ids(ids: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """The policy's last turn. What an environment wrote is no achievement of the policy's, and is never judged."""
    answered = np.flatnonzero(~sampled)
    return ids[answered[-1] + 1 :] if len(answered) else ids
