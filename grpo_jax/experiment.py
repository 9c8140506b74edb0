"""From an experiment file and command-line overrides to a checked config, and back to a file that runs again."""

import contextlib
import dataclasses
import io
import math
import re
import runpy
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from grpo_jax.config import Config
from grpo_jax.config.types import check_types

FLAG_STYLE = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)

SHORT = {"--resume": "--run.resume=True", "--distributed": "--distributed.enabled=True"}


def load(path: str | Path) -> Config:
    """The `config` of an experiment file.

    Raises:
        ValueError: the file is missing, fails, or has no `config = Config(...)`; the message names the file.
    """
    if not Path(path).is_file():
        raise ValueError(f"experiment: no such file: {path}")
    try:
        config = runpy.run_path(str(path)).get("config")
    except Exception as error:
        raise ValueError(f"experiment: {path} failed with {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise ValueError(
            f"experiment: {path} must define `config = grpo_jax.config.Config(...)`, got {type(config).__name__}"
        )
    return config


def override(config: Config, arguments: Sequence[str], program: str) -> Config:
    """`config` with command-line flags applied; `--help` prints every field and exits.

    Raises:
        ValueError: an unknown flag or a value of the wrong type, in one line that names the flag or the field.
    """
    check_types(config)
    config = _switch_on(config, arguments)
    arguments = [SHORT.get(argument, argument) for argument in arguments]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                Config, default=config, args=arguments, prog=program, config=FLAG_STYLE, use_underscores=True
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise ValueError(_first_sentence(complaint.getvalue())) from None


def _switch_on(section: Any, arguments: Sequence[str], prefix: str = "--") -> Any:
    """`section` with those of its optional sections that are None at their defaults, if a flag names a field of one.

    `--loss.history.window 5` alone thus turns HA-DW on; `--help` shows every section.
    """
    types = typing.get_type_hints(type(section))
    changes = {}
    for f in dataclasses.fields(section):
        value, flag = getattr(section, f.name), f"{prefix}{f.name}."
        if value is None and any(_names(a).startswith(flag) or a in ("--help", "-h") for a in arguments):
            value = next((t() for t in typing.get_args(types[f.name]) if dataclasses.is_dataclass(t)), None)
        if dataclasses.is_dataclass(value):
            value = _switch_on(value, arguments, flag)
        if value is not getattr(section, f.name):
            changes[f.name] = value
    return dataclasses.replace(section, **changes) if changes else section


def _names(argument: str) -> str:
    """A flag as the fields are called: tyro also takes hyphens for underscores."""
    return "--" + argument[2:].replace("-", "_") if argument.startswith("--") else ""


def _first_sentence(box: str) -> str:
    """The first paragraph of tyro's boxed error message, plus the nearest flag if it suggests one."""
    box = re.sub(r"\x1b\[[0-9;]*m", "", box)  # colours, on a terminal
    lines = [line.strip("│ ") for line in box.splitlines()[1:] if line[:1] not in "╭╰"]  # without the title
    rules = (
        r"^[─-]{5,}$"  # lines of "-" where the terminal has no UTF-8; there one stands under the title too
    )
    paragraphs = [p for p in re.split(rules, "\n".join(lines), flags=re.MULTILINE) if p.strip()]
    message = " ".join(paragraphs[0].split())
    suggestions = re.findall(r"^--[\w.\-]+", "\n".join(paragraphs[1:]), flags=re.MULTILINE)
    if message.startswith("Unrecognized") and suggestions:
        return f"{message} (did you mean {suggestions[0]}?)"
    return message


def to_source(config: Config) -> str:
    """The config as an experiment file: every field spelled out, so that the file alone repeats the run."""
    return (
        '"""The resolved config of this run; `grpo-jax train` on this file runs it again."""\n\n'
        "from grpo_jax.config import *  # noqa: F403\n"
        "from grpo_jax.models.config import *  # noqa: F403\n\n"
        f"config = {_literal(config, 0)}\n"
    )


def _literal(value: Any, depth: int) -> str:
    pad, end = "    " * (depth + 1), "    " * depth
    if dataclasses.is_dataclass(value):
        inner = "".join(
            f"{pad}{f.name}={_literal(getattr(value, f.name), depth + 1)},\n"
            for f in dataclasses.fields(value)
        )
        return f"{type(value).__name__}(\n{inner}{end})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_literal(v, depth + 1)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple):
        inner = "".join(f"{pad}{_literal(item, depth + 1)},\n" for item in value)
        return f"(\n{inner}{end})" if value else "()"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"  # inf is no name
    return repr(value)


def differences(old: Any, new: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted names of the fields in which two configs differ, with both values."""
    if type(old) is not type(new) or not dataclasses.is_dataclass(old):
        return {} if old == new else {prefix: (old, new)}
    found: dict[str, tuple[Any, Any]] = {}
    for f in dataclasses.fields(old):
        name = f"{prefix}.{f.name}" if prefix else f.name
        found |= differences(getattr(old, f.name), getattr(new, f.name), name)
    return found
