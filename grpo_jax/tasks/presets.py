r"""Well-known problem sets: their fields, how they are asked, where the answer is, how it is judged.

A preset is read from `data.path`, or from the folder that the environment variable GRPO_JAX_DATA names, or,
where the network is there, from the hub: `hub` is a path that `data.path` takes. Prompts ask for the form of
answer that the judge extracts. Several sets come in several layouts (problem or question, …); each is tried.
"""

import base64
import io
import json
import os
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpo_jax.tasks.boxed import last_boxed
from grpo_jax.tasks.readers import rows
from grpo_jax.tasks.rows import Mapper, Row, lookup
from grpo_jax.tasks.splitting import TaskSplit, distinct, split, two_sources
from grpo_jax.types import Problem

FOLDER = "GRPO_JAX_DATA"

BOXED = "{problem}\n\nReason step by step, and put your final answer within \\boxed{{}}.\n"
SCRIPT = (
    "Write a Python program that reads standard input and prints the answer, in one block of code that begins "
    "with ```python and ends with ```."
)
METHOD = (
    "Complete this class:\n\n```python\n{starter_code}\n```\n\nWrite Python, in one block of code that begins "
    "with ```python and ends with ```."
)
FUNCTION = (
    "{problem}\n\nYour code must pass this test:\n\n{first_test}\n\nWrite Python, in one block of code that "
    "begins with ```python and ends with ```.\n"
)


@dataclass(frozen=True)
class Preset:
    """A problem set. `fields` says where `problem` and `answer` are, the first of several that a row has."""

    file: str
    """Name that its file has in the folder."""
    hub: str
    """Where it is on the hub."""
    problem: tuple[str, ...] = ("problem", "question")
    answer: tuple[str, ...] = ("answer",)
    answer_pattern: str | None = None
    prompt: str = BOXED
    reward: str = "math"
    """The judge."""
    max_prompt_length: int = 1024
    max_completion_length: int = 8192
    """Recommended, in tokens."""
    convert: Callable[[Row], Row | None] | None = None
    """A row with more fields, or None to leave it out."""
    example_answer: str = "\\boxed{{{answer}}}"
    """How a worked example is answered, in the form the prompt asks for."""
    test_file: str = ""
    """Name of the file that models are compared on, where that is not `file`."""
    test_hub: str = ""
    """Where it is on the hub."""


def _solution(row: Row) -> Row:
    boxed, _ = last_boxed(str(lookup(row, "solution")))
    if boxed is None:
        raise ValueError("the solution has no \\boxed answer")
    return {**row, "answer": boxed}


def _dapo(row: Row) -> Row:
    """The question without the instructions around it."""
    text = lookup(row, "prompt")[0]["content"]
    if text.startswith("Solve the following math problem"):
        text = text.partition("\n\n")[2].rpartition("\n\nRemember to put your answer")[0]
    return {**row, "problem": text}


def _olympiad(row: Row) -> Row:
    answers = lookup(row, "final_answer")
    return {**row, "answer": ", ".join(answers) if isinstance(answers, list) else answers}


def _mbpp(row: Row) -> Row:
    tests = lookup(row, "test_list")
    return {
        **row,
        "problem": row.get("text") or lookup(row, "prompt"),
        "answer": row["code"],
        "first_test": tests[0],
    }


def _livecodebench(row: Row) -> Row | None:
    """Problems on standard input, and those that ask for a method of a class, with the code it starts from."""
    cases = json.loads(lookup(row, "public_test_cases")) + _private_cases(
        row.get("private_test_cases") or "[]"
    )
    named = {**row, "problem": lookup(row, "question_content"), "answer": ""}
    kinds = {case.get("testtype") for case in cases}
    if kinds == {"stdin"}:
        return {**named, "form": SCRIPT, "test_cases": cases}
    if kinds != {"functional"}:
        raise ValueError(
            f"test cases of the kinds {sorted(map(str, kinds))}, expected stdin or functional ones"
        )
    metadata = lookup(row, "metadata")
    method = (json.loads(metadata) if isinstance(metadata, str) else metadata)["func_name"]
    form = METHOD.replace("{starter_code}", lookup(row, "starter_code").strip("\n"))
    return {**named, "form": form, "method_cases": cases, "entry_point": f"Solution.{method}"}


class _TextOnly(pickle.Unpickler):
    """The set holds pickles of one text each; anything else in them might run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"a pickled {module}.{name} in private_test_cases")


def _private_cases(field: str) -> list[Mapping[str, str]]:
    if field.lstrip().startswith("["):
        return json.loads(field)
    text = _TextOnly(io.BytesIO(zlib.decompress(base64.b64decode(field)))).load()
    return json.loads(text)


PRESETS = {
    "gsm8k": Preset(
        "gsm8k_train.jsonl",
        "hf://datasets/openai/gsm8k/main/train-*.parquet",
        answer_pattern=r"####\s*(.+)",
        max_prompt_length=512,
        max_completion_length=1024,
        test_file="gsm8k_test.jsonl",
        test_hub="hf://datasets/openai/gsm8k/main/test-*.parquet",
    ),
    "math": Preset(
        "math_train.jsonl",
        "hf://datasets/DigitalLearningGmbH/MATH-lighteval/data/train-*.parquet",
        convert=_solution,
        max_completion_length=4096,
        test_file="math_test.jsonl",
        test_hub="hf://datasets/DigitalLearningGmbH/MATH-lighteval/data/test-*.parquet",
    ),
    "math500": Preset(
        "math500.jsonl", "hf://datasets/HuggingFaceH4/MATH-500/test.jsonl", max_completion_length=4096
    ),
    "dapo17k": Preset(
        "dapo-math-17k.parquet",
        "hf://datasets/BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet",
        answer=("reward_model.ground_truth",),
        convert=_dapo,
        max_completion_length=20480,
    ),
    "polaris": Preset(
        "polaris.jsonl",
        "hf://datasets/POLARIS-Project/Polaris-Dataset-53K/**/*.parquet",
        max_completion_length=16384,
    ),
    "svamp": Preset(
        "svamp.jsonl",
        "hf://datasets/ChilleD/SVAMP/data/train-*.parquet",
        answer=("Answer",),
        prompt=BOXED.replace("{problem}", "{Body} {Question}"),
        max_prompt_length=512,
        max_completion_length=1024,
    ),
    "aime24": Preset(
        "aime24.jsonl",
        "hf://datasets/HuggingFaceH4/aime_2024/data/train-*.parquet",
        max_completion_length=16384,
    ),
    "aime25": Preset("aime25.jsonl", "hf://datasets/math-ai/aime25/test.jsonl", max_completion_length=16384),
    "amc23": Preset("amc23.jsonl", "hf://datasets/math-ai/amc23/data/test-*.parquet"),
    "minerva": Preset("minerva.jsonl", "hf://datasets/math-ai/minervamath/test.jsonl"),
    "olympiadbench": Preset(
        "olympiadbench.parquet",
        "hf://datasets/Hothan/OlympiadBench/OE_TO_maths_en_COMP/*.parquet",
        convert=_olympiad,
        max_completion_length=16384,
    ),
    "hmmt25": Preset(
        "hmmt25.jsonl",
        "hf://datasets/MathArena/hmmt_feb_2025/data/train-*.parquet",
        max_completion_length=16384,
    ),
    "humaneval": Preset(
        "human_eval.jsonl.gz",
        "hf://datasets/openai/openai_humaneval/openai_humaneval/test-*.parquet",
        problem=("prompt",),
        answer=("canonical_solution",),
        prompt="{problem}",
        example_answer="{canonical_solution}",
        reward="code",
        max_completion_length=1024,
    ),
    "mbpp": Preset(
        "mbpp.jsonl",
        "hf://datasets/google-research-datasets/mbpp/full/train-*.parquet",
        prompt=FUNCTION,
        example_answer="```python\n{answer}\n```",
        reward="code",
        max_completion_length=1024,
        convert=_mbpp,
        test_file="mbpp_test.jsonl",
        test_hub="hf://datasets/google-research-datasets/mbpp/full/test-*.parquet",
    ),
    "livecodebench": Preset(
        "livecodebench.jsonl",
        "hf://datasets/livecodebench/code_generation_lite/test.jsonl",
        prompt="{problem}\n\n{form}\n",
        reward="code",
        max_prompt_length=4096,
        max_completion_length=16384,
        convert=_livecodebench,
    ),
}


def from_preset(
    *,
    name: str,
    path: str = "",
    held_out_path: str | None = None,
    prompt: str | None = None,
    system_prompt: str | None = None,
    held_out_fraction: float = 0.1,
    allow_overlap: bool = False,
) -> TaskSplit:
    """The problems of a preset, held out by hash or taken from a second file of the same layout."""
    if name not in PRESETS:
        raise ValueError(f"data.name {name!r} is not a preset. Expected one of {', '.join(PRESETS)}.")
    read = partial(_read, name, prompt=prompt, system_prompt=system_prompt)
    problems = read(path or _expected(name, PRESETS[name]), "data.path")
    if held_out_path is None:
        return split(problems, held_out_fraction)
    return two_sources(problems, read(held_out_path, "data.held_out_path"), allow_overlap=allow_overlap)


def evaluation_problems(name: str, *, path: str = "", folder: Path | None = None) -> list[Problem]:
    """The problems of a preset that models are compared on: never those of a file that is there to train on.

    Args:
        name: the preset.
        path: where its file is; empty looks in `folder`.
        folder: where the files of presets are; None takes the one that GRPO_JAX_DATA names.
    """
    preset = PRESETS[name]
    if not path:
        file = preset.test_file or preset.file
        chosen = folder or Path(os.environ.get(FOLDER, ""))
        path = str(chosen / file)
        if not Path(path).is_file():
            raise ValueError(
                f"tasks: {name} expects {file} in {folder or f'the folder that {FOLDER} names'}, and it is not "
                f"there; or say where, as in {name}={preset.test_hub or preset.hub}"
            )
    return _read(name, path, "tasks")


def _read(
    name: str, where: str, field: str, *, prompt: str | None = None, system_prompt: str | None = None
) -> list[Problem]:
    preset = PRESETS[name]
    mapper = Mapper(
        prompt=prompt or preset.prompt,
        answer_field="answer",
        answer_pattern=preset.answer_pattern,
        system_prompt=system_prompt,
        answer_required=name != "livecodebench",
    )
    problems = distinct(mapper.problems(_canonical(rows(where, field), preset)))
    if not problems:
        raise ValueError(f"{field}: {where} holds no problems of {name}.")
    return problems


def asked(
    name: str,
    located: Iterable[tuple[str, Row]],
    *,
    prompt: str | None = None,
    system_prompt: str | None = None,
) -> Iterator[Problem]:
    """Rows like the preset's as problems, an answer being there or not."""
    preset = PRESETS[name]
    for pair in located:
        found = list(_canonical([pair], preset, answer_required=False))
        if not found:
            raise ValueError(f"{pair[0]}: {name} leaves such a row out")
        ((location, row),) = found
        mapper = Mapper(
            prompt=prompt or preset.prompt,
            answer_field="answer",
            answer_pattern=preset.answer_pattern if row["answer"] else None,
            system_prompt=system_prompt,
            answer_required=False,
        )
        yield from mapper.problems([(location, row)])


def _expected(name: str, preset: Preset) -> str:
    """Where the preset's file is, or an error that says where it should be."""
    folder = os.environ.get(FOLDER)
    if folder and (file := Path(folder) / preset.file).exists():
        return str(file)
    where = (
        f"in {folder}, which {FOLDER} names"
        if folder
        else f"in the folder that {FOLDER} names, which is not set"
    )
    raise ValueError(
        f"data.path: the preset {name} expects {preset.file} {where}; or give data.path, as in {preset.hub}."
    )


def _canonical(
    found: Iterable[tuple[str, Row]], preset: Preset, *, answer_required: bool = True
) -> Iterator[tuple[str, Row]]:
    """Rows that have `problem` and `answer`, whatever their layout calls them."""
    for location, row in found:
        try:
            converted = preset.convert(row) if preset.convert else row
            if converted is None:
                continue
            fields = ("answer",) if "answer" in converted else preset.answer
            named = {"answer": _first(converted, fields, required=answer_required)}
            if "{problem}" in preset.prompt:
                named["problem"] = _first(converted, ("problem", *preset.problem))
        except (ValueError, KeyError, TypeError, IndexError, zlib.error, pickle.UnpicklingError) as error:
            raise ValueError(f"{location}: {error}") from None
        yield location, {**converted, **named}


def _first(row: Row, names: Iterable[str], *, required: bool = True) -> Any:
    for name in names:
        try:
            return lookup(row, name)
        except ValueError:
            continue
    if not required:
        return ""
    raise ValueError(f"there is none of the fields {', '.join(names)}; the row has {', '.join(row)}")
