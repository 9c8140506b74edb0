"""Rewards written for other programs: TRL's batched signature, verl's compute_score, and coroutines."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpo_jax.types import Problem

CONCURRENT = 64
"""Coroutines that wait at one time."""

BatchFunction = Callable[..., Sequence[float | Exception | None]]


def from_trl(function: Callable[..., Any]) -> BatchFunction:
    """`function(prompts, completions, **columns)` -> a number or None for each, as TRL calls it.

    A column is what every problem's metadata has, and `answer`. If the prompts are chats then so are the
    completions: a list of one assistant message each.
    """

    def call(
        problems: Sequence[Problem], completions: Sequence[str], **options: Any
    ) -> Sequence[float | None]:
        prompts, texts = [_as_chat(p.prompt) for p in problems], list(completions)
        if problems and not isinstance(problems[0].prompt, str):
            texts = [[{"role": "assistant", "content": text}] for text in completions]
        values = function(prompts=prompts, completions=texts, **_columns(problems), **options)
        return _wait(values) if inspect.isawaitable(values) else values

    return call


def from_verl(function: Callable[..., Any]) -> BatchFunction:
    """`function(data_source, solution_str, ground_truth, extra_info)` -> a number or {"score": …}."""

    def one(problem: Problem, completion: str, options: dict[str, Any]) -> Any:
        result = function(
            data_source=problem.metadata.get("data_source", ""),
            solution_str=completion,
            ground_truth=problem.answer,
            extra_info=problem.metadata.get("extra_info", dict(problem.metadata)),
            **options,
        )
        return result["score"] if isinstance(result, dict) else result

    def call(problems: Sequence[Problem], completions: Sequence[str], **options: Any) -> list[Any]:
        return [_caught(one, p, c, options) for p, c in zip(problems, completions, strict=True)]

    return call


def from_coroutine(function: Callable[..., Awaitable[float | None]]) -> BatchFunction:
    """An `async def reward(problem, completion, **options)`; many wait at the same time."""

    async def gather(
        problems: Sequence[Problem], completions: Sequence[str], options: dict[str, Any]
    ) -> list[Any]:
        slots = asyncio.Semaphore(CONCURRENT)

        async def one(problem: Problem, completion: str) -> Any:
            async with slots:
                return await function(problem, completion, **options)

        jobs = (one(p, c) for p, c in zip(problems, completions, strict=True))
        return await asyncio.gather(*jobs, return_exceptions=True)

    def call(problems: Sequence[Problem], completions: Sequence[str], **options: Any) -> list[Any]:
        return _wait(gather(problems, completions, options))

    return call


def _wait(coroutine: Any) -> Any:
    """Its result. In a thread of its own, because a notebook already runs a loop in this one."""

    async def run() -> Any:
        return await coroutine

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()


def _caught(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _columns(problems: Sequence[Problem]) -> dict[str, list[Any]]:
    names = set.intersection(*(set(problem.metadata) for problem in problems)) if problems else set()
    taken = {"prompts", "completions", "answer"}
    columns = {name: [problem.metadata[name] for problem in problems] for name in sorted(names - taken)}
    return {**columns, "answer": [problem.answer for problem in problems]}


def _as_chat(prompt: Any) -> Any:
    if isinstance(prompt, str):
        return prompt
    return [{"role": message.role, "content": message.content} for message in prompt]
