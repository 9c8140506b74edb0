"""Rows of a file or of standard input as problems to sample."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from grpo_jax.config import Config, FileData
from grpo_jax.tasks.readers import rows
from grpo_jax.tasks.rows import Mapper, Row, lookup
from grpo_jax.types import Problem


def from_file(path: str, config: Config | None) -> list[Problem]:
    """The problems of a JSONL, CSV, Parquet or Arrow file, in its order, repeats included."""
    return list(_problems(rows(path, "--file"), config))


def from_lines(stream: TextIO, config: Config | None) -> list[Problem]:
    """The problems of JSON lines; a line that is no JSON object is a prompt as it stands."""

    def parsed() -> Iterator[tuple[str, Row]]:
        for number, line in enumerate(stream, start=1):
            text = line.rstrip("\n")
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError:
                row = None
            yield f"line {number}", row if isinstance(row, dict) else {"prompt": text}

    return list(_problems(parsed(), config))


def _problems(located: Iterable[tuple[str, Row]], config: Config | None) -> Iterator[Problem]:
    """A row with a `prompt` (text) or `messages` says it all; any other is read as the run's own data are."""
    for location, row in located:
        mapper = _mapper(row, config)
        if mapper is None:
            raise ValueError(
                f"{location}: expected a field 'prompt' or 'messages', and the row has {', '.join(map(repr, row))}"
            )
        yield from mapper.problems(
            [(location, {**row, mapper.answer_field: _answer(row, mapper.answer_field)})]
        )


def _answer(row: Row, field: str) -> Any:
    """What the row has in a field, perhaps a dotted one, or an empty text. 0 is an answer."""
    try:
        value = lookup(row, field)
    except ValueError:
        return ""
    return "" if value is None else value


def _mapper(row: Row, config: Config | None) -> Mapper | None:
    common = {"answer_field": "answer", "answer_required": False}
    if "messages" in row:
        return Mapper(prompt="", messages_field="messages", **common)
    if "prompt" in row:
        return Mapper(prompt="{prompt}", **common)
    data = config.data if config else None
    if not isinstance(data, FileData):
        return None
    return Mapper(
        prompt=data.prompt,
        messages_field=data.messages_field,
        system_prompt=data.system_prompt,
        answer_field=data.answer_field,
        answer_pattern=None if _answer(row, data.answer_field) == "" else data.answer_pattern,
        answer_required=False,
    )
