"""Problems from data sets that tensorflow-datasets has prepared, read without TensorFlow.

Preparing needs no TensorFlow either if the file format is array_record or parquet:

    tfds.builder("gsm8k", data_dir=…, file_format="array_record").download_and_prepare()

A data set stored as tfrecord needs TensorFlow to be read.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from grpo_jax.tasks.rows import Mapper, Row
from grpo_jax.tasks.splitting import TaskSplit, distinct, split, two_sources
from grpo_jax.types import Problem

# Data sets that the library still has, but registers only when their module is imported.
UNREGISTERED = ("gsm8k",)


def from_tensorflow_datasets(
    *,
    name: str,
    train_split: str,
    mapper: Mapper,
    held_out_split: str | None = None,
    data_dir: str | None = None,
    held_out_fraction: float = 0.1,
    allow_overlap: bool = False,
) -> TaskSplit:
    """Problems of a split, held out by hash or taken from a second split."""
    problems = _read(name, train_split, data_dir, mapper)
    if held_out_split is None:
        return split(problems, held_out_fraction)
    held_out = _read(name, held_out_split, data_dir, mapper)
    return two_sources(problems, held_out, allow_overlap=allow_overlap)


def _read(name: str, split_name: str, data_dir: str | None, mapper: Mapper) -> list[Problem]:
    problems = distinct(mapper.problems(_rows(name, split_name, data_dir)))
    if not problems:
        raise ValueError(f"data.split: {name} {split_name!r} holds no problems.")
    return problems


def _rows(name: str, split_name: str, data_dir: str | None) -> Iterator[tuple[str, Row]]:
    import tensorflow_datasets as tfds

    base = name.partition("/")[0]
    if base in UNREGISTERED:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.text.{base}")
    try:
        builder = tfds.builder(name, data_dir=data_dir)
        if "[" in split_name and builder.info.file_format.value == "parquet":
            raise ValueError("a slice of a parquet data set would be the whole; store it as array_record")
        source = builder.as_data_source(split=split_name)
    except Exception as error:  # the library's own messages can be a list of all its data sets
        reason = str(error).strip().partition("\n")[0][:300]
        raise ValueError(
            f"data.name: cannot read {name!r}, split {split_name!r}, from {data_dir or 'the usual folder'}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    for number in range(len(source)):
        yield f"{name}/{split_name}:{number}", {key: _plain(value) for key, value in source[number].items()}


def _plain(value: Any) -> Any:
    """Text in place of bytes, and Python's own numbers and lists."""
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
