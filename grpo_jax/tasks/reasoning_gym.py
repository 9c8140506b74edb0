"""Any task of reasoning-gym, by name (extra: reasoning-gym).

Judge these with exact_match or number_match where the answer is a word or a number, and otherwise with the
reward `reasoning_gym`, which calls the task's own scorer where that is safe.
"""

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from grpo_jax.tasks.rows import fill, template_fields
from grpo_jax.tasks.splitting import TaskSplit, split
from grpo_jax.types import Message, Problem


def load_library() -> Any:
    """The reasoning_gym package, or an error that names the extra."""
    try:
        import reasoning_gym
    except ModuleNotFoundError as error:
        raise ValueError(
            f"reasoning-gym cannot be imported ({error}): pip install 'grpo_jax[reasoning-gym]'."
        ) from None
    return reasoning_gym


def from_reasoning_gym(
    *,
    task: str,
    options: Mapping[str, Any],
    size: int,
    prompt: str,
    held_out_fraction: float,
    level: int | None = None,
    system_prompt: str | None = None,
) -> TaskSplit:
    """`size` draws of a task, duplicates removed. `options` are the task's own, and go before its `level`."""
    template_fields(prompt)
    if size < 1:
        raise ValueError(f"data.size is {size}, expected at least 1.")
    dataset = _dataset(task=task, options=options, size=size, level=level)
    return split((_problem(dataset[i], prompt, system_prompt) for i in range(size)), held_out_fraction)


def _dataset(*, task: str, options: Mapping[str, Any], size: int, level: int | None) -> Any:
    library = load_library()
    tasks = library.factory.DATASETS
    if task not in tasks:
        close = get_close_matches(task, tasks, n=3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(
            f"data.task {task!r} is not a task of reasoning-gym.{hint} It has {', '.join(sorted(tasks))}."
        )
    known = [f.name for f in fields(tasks[task][1]) if f.name not in ("seed", "size")]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(
            f"data.options: {', '.join(map(repr, unknown))} is not an option of reasoning-gym's {task}, "
            f"which has {', '.join(known)}."
        )
    try:
        return library.create_dataset(
            task, **{**_level(library, task, level), **options, "seed": 0, "size": size}
        )
    except Exception as error:  # its configs check with assert, and some fail in arithmetic on the option
        reason = str(error) or type(error).__name__
        raise ValueError(f"data.options: reasoning-gym's {task} refuses {dict(options)}: {reason}") from error


def _level(library: Any, task: str, level: int | None) -> dict[str, Any]:
    """The options of a level of the task's curriculum; past an option's last level it stays at that."""
    if level is None:
        return {}
    if level < 0:
        raise ValueError(f"data.level is {level}, expected at least 0")
    if not library.factory.has_curriculum(task):
        raise ValueError(f"data.level: {task} has no curriculum")
    curriculum = library.factory.create_curriculum(task)
    curriculum.set_global_level(level)
    config = curriculum.generate_configuration()
    return {f.name: getattr(config, f.name) for f in fields(config)}


def _problem(entry: Mapping[str, Any], prompt: str, system_prompt: str | None) -> Problem:
    # Some tasks have many right answers and give none; only their own scorer can judge those.
    answer = "" if entry["answer"] is None else str(entry["answer"])
    text = fill(prompt, {"question": entry["question"]})
    chat = (Message("system", system_prompt or ""), Message("user", text))
    return Problem(
        text if system_prompt is None else chat,
        answer,
        {"task": entry["metadata"]["source_dataset"], "entry": entry},
    )
