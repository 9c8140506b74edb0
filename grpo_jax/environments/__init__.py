"""What answers the policy in a conversation of several turns, and the conversation as tokens."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from grpo_jax.environments.calculator import Calculator
from grpo_jax.environments.interface import Environment, Step
from grpo_jax.resolve import resolve

__all__ = ["BUILTINS", "Environment", "Step", "build"]

BUILTINS = {"calculator": Calculator}


def build(name: str, options: Mapping[str, Any]) -> Environment | None:
    """The environment a config names, called with its options; None if it names none.

    Raises:
        ValueError: an unknown name, options it does not take, or something that is no `Environment`.
    """
    if not name:
        if options:
            raise ValueError(
                f"rollout.environment_options: got {dict(options)}, but there is no rollout.environment"
            )
        return None
    make = resolve(name, BUILTINS, "rollout.environment")
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise ValueError(f"rollout.environment_options: {dict(options)} of {name!r}: {error}") from None
    try:
        environment = make(**options)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"rollout.environment: {name!r} failed: {type(error).__name__}: {error}") from error
    missing = [part for part in ("reset", "step", "stop_strings") if not hasattr(environment, part)]
    if missing or not _texts(environment.stop_strings):
        raise ValueError(
            f"rollout.environment: {name!r} gives a {type(environment).__name__}, "
            f"expected reset, step and stop_strings (a sequence of texts)"
            + (f"; it has no {missing[0]}" if missing else "")
        )
    return environment


def _texts(value: Any) -> bool:
    """Whether this is a sequence of texts that are not empty."""
    plain = isinstance(value, Collection) and not isinstance(value, str)
    return plain and all(isinstance(text, str) and text for text in value)
