"""Calls reasoning-gym's scorers. Imported by worker processes, so it must not import jax."""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any


def start() -> None:
    """Import the library before the first job, whose time is limited."""
    importlib.import_module("reasoning_gym")


def score(task: str, answer: str, entry: Mapping[str, Any]) -> float:
    """The task's own score of an answer."""
    return float(_scorer(task)(answer, entry))


@cache
def _scorer(task: str) -> Any:
    return importlib.import_module("reasoning_gym").get_score_answer_fn(task)
