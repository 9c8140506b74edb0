"""From a row of a data set to a `Problem`: prompt template, answer field, answer pattern.

Sources hand over (location, row) pairs, so that every message can say where the bad row is.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from string import Formatter
from typing import Any

from grpo_jax.tasks.splitting import shorten
from grpo_jax.types import Message, Problem

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Mapper:
    """How the fields of a row become prompt and answer. Fields as in `config.FileData`."""

    prompt: str
    answer_field: str
    answer_pattern: str | None = None
    messages_field: str | None = None
    system_prompt: str | None = None
    answer_required: bool = True
    """False where tests judge and there is no reference answer."""

    def __post_init__(self) -> None:
        template_fields(self.prompt)
        if self.answer_pattern is not None:
            _compile(self.answer_pattern)

    def problems(self, rows: Iterable[tuple[str, Row]]) -> Iterator[Problem]:
        """One problem per row; a row that cannot become one is an error that says where it is."""
        for location, row in rows:
            try:
                yield Problem(self._prompt(row), self._answer(row), {**row, "location": location})
            except ValueError as error:
                raise ValueError(f"{location}: {error}") from None

    def _prompt(self, row: Row) -> str | tuple[Message, ...]:
        if self.messages_field is None:
            text = fill(self.prompt, row)
            if self.system_prompt is None:
                return text
            return (Message("system", self.system_prompt), Message("user", text))
        messages = _messages(lookup(row, self.messages_field), self.messages_field)
        if self.system_prompt is not None and messages[0].role != "system":
            messages = (Message("system", self.system_prompt), *messages)
        return messages

    def _answer(self, row: Row) -> str:
        answer = as_text(lookup(row, self.answer_field), self.answer_field)
        if self.answer_pattern is not None:
            match = _compile(self.answer_pattern).search(answer)
            if match is None or match[1] is None:
                raise ValueError(
                    f"data.answer_pattern {self.answer_pattern!r} does not match the field "
                    f"{self.answer_field!r}: {shorten(answer)!r}"
                )
            answer = match[1]
        if not answer.strip() and self.answer_required:
            raise ValueError(f"the answer in field {self.answer_field!r} is empty")
        return answer.strip()


def fill(template: str, row: Row, what: str = "data.prompt") -> str:
    """The template with the row's fields in it; `what` the template is, for errors."""
    names = template_fields(template, what)
    missing = [name for name in names if name not in row]
    if missing:
        raise ValueError(
            f"{what} names {', '.join(map(repr, missing))}, but the row has {', '.join(map(repr, row))}"
        )
    text = template.format_map({name: as_text(row[name], name) for name in names})
    if not text.strip():
        raise ValueError("the prompt is empty" if what == "data.prompt" else f"{what} gives an empty text")
    return text


def template_fields(template: str, what: str = "data.prompt") -> list[str]:
    """Names in braces; a template that is not of plain `{field}` form is an error."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{what} {template!r}: {error}; write a literal brace twice.") from None
    names = [name for _, name, _, _ in parts if name is not None]
    for _, name, spec, conversion in parts:
        if name is not None and (spec or conversion or not re.fullmatch(r"[^\W\d][\w -]*", name)):
            raise ValueError(
                f"{what} {template!r}: {name!r} is not a field name; expected {{field}}, and a literal "
                "brace written twice."
            )
    return names


def lookup(row: Row, field: str) -> Any:
    """A field of the row; a dotted name reaches into nested ones."""
    if field in row:
        return row[field]
    value: Any = row
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"there is no field {field!r}; the row has {', '.join(map(repr, row))}")
        value = value[part]
    return value


def as_text(value: Any, field: str) -> str:
    """A field as a person would write it: whole floats lose their ".0", a list of one is its element."""
    match value:
        case str():
            return value
        case bytes():
            return value.decode()
        case bool() | int():
            return str(value)
        case float() | Decimal() if math.isfinite(value):
            return str(int(value)) if value == int(value) else str(value)
        case [single]:
            return as_text(single, field)
    raise ValueError(f"field {field!r} is {shorten(repr(value))}, expected text or a number")


def _messages(value: Any, field: str) -> tuple[Message, ...]:
    try:
        messages = tuple(Message(role=turn["role"], content=turn["content"]) for turn in value)
        well_formed = bool(messages) and all(isinstance(part, str) for turn in messages for part in turn)
    except (TypeError, KeyError):
        well_formed = False
    if not well_formed:
        raise ValueError(
            f"field {field!r} is {shorten(repr(value))}, expected a list of {{role, content}} with texts"
        )
    return messages


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"data.answer_pattern {pattern!r} is not a regular expression: {error}.") from None
    if not compiled.groups:
        raise ValueError(
            f"data.answer_pattern {pattern!r} has no group; put the answer's part in parentheses."
        )
    return compiled
