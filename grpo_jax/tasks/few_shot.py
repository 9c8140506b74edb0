"""Worked examples before a problem, as turns of its chat or as text.

They are training problems, drawn by a fixed seed, and are trained on no more: a problem among its own examples would
give its answer away. Held-out problems are never among them.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from grpo_jax.tasks.rows import fill
from grpo_jax.tasks.splitting import TaskSplit, normalised, restrict
from grpo_jax.types import Message, Problem

SEED = 0


def take(
    split: TaskSplit, count: int, *, held_out: Iterable[Problem]
) -> tuple[TaskSplit, tuple[Problem, ...]]:
    """The split without `count` training problems, and these; none of them is in `held_out`."""
    if count == 0:
        return split, ()
    apart = {normalised(problem.prompt_text) for problem in held_out}
    free = [i for i, problem in enumerate(split.train) if normalised(problem.prompt_text) not in apart]
    if not 0 < count < len(free):
        raise ValueError(
            f"data.few_shot is {count}, expected at least 0 and fewer than the {len(free)} training problems."
        )
    chosen = random.Random(SEED).sample(free, count)
    kept = sorted(set(range(len(split.train))).difference(chosen))
    return restrict(split, kept), tuple(split.train[index] for index in chosen)


def show(split: TaskSplit, examples: Sequence[Problem], *, answer: str, chat: bool) -> TaskSplit:
    """The split with the examples before every prompt.

    Args:
        split: its problems are not among the examples.
        examples: in the order in which they are shown.
        answer: how an example is answered: a template over its fields, {answer} being the reference answer.
        chat: whether text prompts will become the message of a user; examples are then turns too.
    """
    if not examples:
        return split
    train, held_out = (
        before(problems, examples, answer=answer, chat=chat) for problems in (split.train, split.held_out)
    )
    return replace(split, train=train, held_out=held_out)


def before(
    problems: Iterable[Problem], examples: Sequence[Problem], *, answer: str, chat: bool
) -> list[Problem]:
    """The problems with the examples before each; arguments as for `show`."""
    answers = [_answer(example, answer) for example in examples]
    pairs = list(zip(examples, answers, strict=True))
    return [
        replace(problem, prompt=_before(problem.prompt, pairs, chat)) if pairs else problem
        for problem in problems
    ]


def _before(
    prompt: str | tuple[Message, ...], pairs: Sequence[tuple[Problem, str]], chat: bool
) -> str | tuple[Message, ...]:
    if isinstance(prompt, str) and not chat:
        return "".join(f"{example.prompt}{answer}\n\n" for example, answer in pairs) + prompt
    turns = _turns(prompt)
    head = turns[:1] if turns[0].role == "system" else ()
    examples = [
        turn
        for example, answer in pairs
        for turn in (*_without_system(_turns(example.prompt)), Message("assistant", answer))
    ]
    return (*head, *examples, *turns[len(head) :])


def _turns(prompt: str | tuple[Message, ...]) -> tuple[Message, ...]:
    return (Message("user", prompt),) if isinstance(prompt, str) else prompt


def _without_system(turns: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(turn for turn in turns if turn.role != "system")


def _answer(example: Problem, template: str) -> str:
    if not example.answer and "{answer}" in template:
        raise ValueError(
            "data.few_shot: a problem has no reference answer to show; data.few_shot_answer can name another field."
        )
    return fill(template, {**example.metadata, "answer": example.answer}, "data.few_shot_answer")
