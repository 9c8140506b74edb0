"""Rows of a file or of standard input as problems to sample."""

import json
from collections.abc import Iterable, Sequence
from typing import TextIO

from grpo_jax import tasks
from grpo_jax.config import Config, Data, DifficultyData, MixtureData, PresetData
from grpo_jax.tasks.presets import PRESETS
from grpo_jax.tasks.readers import rows
from grpo_jax.tasks.rows import Mapper, Row, template_fields
from grpo_jax.types import Problem


def from_file(path: str, config: Config | None) -> list[Problem]:
    """The problems of a JSONL, CSV, Parquet or Arrow file, in its order, repeats included."""
    return from_rows(rows(path, "--file"), config)


def from_lines(stream: TextIO, config: Config | None) -> list[Problem]:
    """The problems of JSON lines; a line that is no JSON object is a prompt as it stands."""
    texts, located = [], []
    for number, line in enumerate(stream, start=1):
        text = line.rstrip("\n")
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except ValueError:
            row = None
        texts.append(None if isinstance(row, dict) else Problem(text, ""))
        if isinstance(row, dict):
            located.append((f"line {number}", row))
    problems = iter(from_rows(located, config))
    return [text or next(problems) for text in texts]


def from_rows(located: Iterable[tuple[str, Row]], config: Config | None) -> list[Problem]:
    """The problems of rows, each with where it is, for messages.

    A row with a `prompt` (text) or `messages` says it all. Any other, or one whose `prompt` or `messages` are a field of
    the run's own rows, is asked as the run asks: by its template, with its system prompt, its few-shot examples before it.
    """
    located = list(located)
    own = [_is_own(row, config) for _, row in located]
    rows_of_run = [pair for pair, mine in zip(located, own, strict=True) if mine]
    asked = iter(tasks.asked(config.data, rows_of_run, chat=config.tokenizer.chat) if rows_of_run else ())
    return [next(asked) if mine else _as_it_stands(*pair) for pair, mine in zip(located, own, strict=True)]


def _as_it_stands(location: str, row: Row) -> Problem:
    if not row.keys() & {"prompt", "messages"}:
        raise ValueError(
            f"{location}: expected a field 'prompt' or 'messages', and the row has {', '.join(map(repr, row))}"
        )
    field, answer = "messages" if "messages" in row else None, row.get("answer")
    mapper = Mapper("{prompt}", answer_field="answer", messages_field=field, answer_required=False)
    (problem,) = mapper.problems([(location, {**row, "answer": "" if answer is None else answer})])
    return problem


def _is_own(row: Row, config: Config | None) -> bool:
    """Whether a row is to be asked as the run's own are. Rows of a mixture do not say whose they are."""
    data = None if config is None else config.data
    if isinstance(data, DifficultyData):
        data = data.source
    if data is None or isinstance(data, MixtureData):
        return False
    said = row.keys() & {"prompt", "messages"}
    if isinstance(row.get("prompt"), list):  # no text, but a field of the run's rows, as in DAPO's
        said -= {"prompt"}
    return not said or not said.isdisjoint(_fields(data))


def _fields(data: Data) -> Sequence[str]:
    """The fields of the rows of a source that its prompts are made of."""
    if isinstance(data, PresetData):
        return PRESETS[data.name].problem
    messages = getattr(data, "messages_field", None)
    return (messages,) if messages else template_fields(data.prompt)
