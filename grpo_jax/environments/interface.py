"""What the policy can talk to: a tool, a game, a user.

An environment is pure and lives on the host. It sees text only; `conversations.py` turns text into tokens and
back, and `rollout/turns.py` runs the turns.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from grpo_jax.types import Message, Problem

ROLES = ("tool", "user")
"""Of an environment's answers: who speaks, for the chat template."""


class Step(NamedTuple):
    """What follows a turn."""

    state: Any
    """The environment's state after it."""
    answer: Message | None
    """What the policy reads before its next turn, as a message of one of the `ROLES`. None: it is over."""


class Environment(Protocol):
    """What answers the policy.

    It may have one more method, `demonstrate(problem) -> Sequence[str]`: turns of a conversation that goes well, which
    a warm start then learns in place of the reference answer.
    """

    stop_strings: Sequence[str]
    """Texts that end a turn, besides the tokenizer's stop tokens; one may be a control token, as in "<|eom_id|>"."""

    def reset(self, problem: Problem) -> Any:
        """The state before the first turn. What the policy reads first is the problem's prompt."""

    def step(self, state: Any, text: str) -> Step:
        """The answer to a turn, which `text` is all of, stop string included and stop token left out."""
