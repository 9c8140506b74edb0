"""What a completion votes for when the majority of a problem's samples decides: its answer, in one spelling.

A vote never says whether the answer is right; samples that the judge calls right are one answer anyway. Rewards
without an extracted answer (programs, formats, a function of the reader's) have no vote.
"""

from collections.abc import Callable
from functools import partial

from grpo_jax.config import RewardFunction
from grpo_jax.rewards.builtin import last_number
from grpo_jax.rewards.exact import number, too_large
from grpo_jax.rewards.extraction import Mode, final_answer, marked_answer
from grpo_jax.rewards.math import MAX_CHARACTERS
from grpo_jax.rewards.normalise import key, normalise
from grpo_jax.rewards.scoring import following

Vote = Callable[[str], str | None]
"""completion -> its answer, or None if it has none. Equal texts are equal answers."""


def voting(reward: RewardFunction) -> Vote | None:
    """How completions vote under a judge, who may see a part of them; None if the judge extracts no answer."""
    vote = _voting(reward)
    if vote is None or not reward.after:
        return vote
    return lambda completion: vote(following(completion, reward.after))


def _voting(reward: RewardFunction) -> Vote | None:
    match reward.name:
        case "math":
            return partial(math_vote, mode=reward.options.get("mode", "lenient"))
        case "number_match":
            return number_vote
        case "exact_match":
            return text_vote
        case "reasoning_gym":
            return marked_vote
    return None


def math_vote(completion: str, *, mode: Mode = "lenient") -> str | None:
    """The normalised final answer; a number as its exact value, so that 1/2, 0.5 and \\frac12 agree; no units."""
    written = final_answer(completion, mode)
    answer = normalise(written) if written is not None and len(written) <= MAX_CHARACTERS else None
    if answer is None or not answer.text:
        return None
    value = None if too_large(answer.text) else number(answer.text)
    return key(answer) if value is None else str(value.value)


def number_vote(completion: str) -> str | None:
    """The last number, as its exact value."""
    value = last_number(completion)
    return None if value is None else str(value)


def text_vote(completion: str) -> str | None:
    """The whole text, up to white space around it."""
    return completion.strip() or None


def marked_vote(completion: str) -> str | None:
    """The marked answer, or the whole text where nothing is marked."""
    return (marked_answer(completion) or completion).strip() or None
