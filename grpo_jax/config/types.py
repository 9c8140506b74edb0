"""Whether the values of a config have the types of its fields: the command line checks its own, a Python file does not."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal

NUMBERS = {int: Integral, float: Real}
CONTAINERS = {tuple: tuple | list, Mapping: Mapping}


def check_types(section: Any, prefix: str = "") -> None:
    """Checks every field of a dataclass, and of those inside it.

    Raises:
        ValueError: names the first field of another type, what came and what was expected.
    """
    hints = typing.get_type_hints(type(section))
    for f in dataclasses.fields(section):
        name, value, hint = prefix + f.name, getattr(section, f.name), hints[f.name]
        if not _is(value, hint):
            raise ValueError(f"{name}: got {value!r}, expected {_words(hint)}")
        inside = enumerate(value) if isinstance(value, tuple | list) else []
        for field, part in [(name, value), *((f"{name}.{place}", part) for place, part in inside)]:
            if dataclasses.is_dataclass(part):
                check_types(part, f"{field}.")


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; what a tuple or a mapping holds is left to those that read it."""
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in typing.get_args(hint))
    if typing.get_origin(hint) in CONTAINERS:  # a text is no tuple of its letters
        return isinstance(value, CONTAINERS[typing.get_origin(hint)])
    if hint in NUMBERS:  # numpy's too; True is no number here
        return isinstance(value, NUMBERS[hint]) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _words(hint: Any) -> str:
    """A type as people read it."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_words, typing.get_args(hint)))
    return getattr(hint, "__name__", str(hint))
