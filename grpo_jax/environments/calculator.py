"""A calculator the policy can call: it writes <<12*34>> and reads 408.

The notation is that of the annotations in GSM8K (Cobbe et al., "Training Verifiers to Solve Math Word Problems",
https://arxiv.org/abs/2110.14168), where a calculator is called while sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_jax.environments.arithmetic import calculate, written
from grpo_jax.environments.interface import Step
from grpo_jax.types import InputError, Message, Problem


@dataclass(frozen=True)
class Calculator:
    """Answers a turn that ends in a call; any other turn is the last. The state is the number of calls so far."""

    opening: str = "<<"
    """What begins a call."""
    closing: str = ">>"
    """What ends a call, and the turn."""
    result: str = "{result}\n"
    """The answer; {result} is the value, or what was wrong with the expression."""

    def __post_init__(self):
        for name in ("opening", "closing"):
            if not getattr(self, name):
                raise ValueError(f"calculator: {name} is empty, expected a text")
        if "{result}" not in self.result:
            raise ValueError(f"calculator: result is {self.result!r}, expected a text with {{result}} in it")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.closing,)

    def reset(self, problem: Problem) -> int:
        return 0

    def step(self, state: int, text: str) -> Step:
        _, opened, expression = text.removesuffix(self.closing).rpartition(self.opening)
        if not opened or not text.endswith(self.closing):
            return Step(state, None)
        try:
            result = written(calculate(expression))
        except ValueError as error:
            result = f"error: {error}"
        return Step(state + 1, Message("tool", self.result.replace("{result}", result)))

    def demonstrate(self, problem: Problem) -> Sequence[str]:
        """One call with the problem's own expression (`question` in its metadata), then the reference answer."""
        expression = problem.metadata.get("question")
        if not isinstance(expression, str):
            raise InputError(
                "calculator: there is no expression in the field 'question' of the problem's metadata"
            )
        return f"{self.opening}{expression}{self.closing}", problem.answer
