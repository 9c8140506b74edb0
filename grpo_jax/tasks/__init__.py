"""Where problems come from, with splits that cannot overlap, and the order they are trained in."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from grpo_jax.config import (
    ArithmeticData,
    Data,
    DifficultyData,
    FileData,
    MixtureData,
    PresetData,
    ReasoningGymData,
    TfdsData,
)
from grpo_jax.tasks import few_shot, presets
from grpo_jax.tasks.files import from_files
from grpo_jax.tasks.iteration import batch, host_slice
from grpo_jax.tasks.mixing import by_difficulty, drop_long, mixture
from grpo_jax.tasks.presets import PRESETS, from_preset
from grpo_jax.tasks.reasoning_gym import from_reasoning_gym
from grpo_jax.tasks.rows import Mapper, Row, lookup
from grpo_jax.tasks.splitting import Mixture, TaskSplit, is_held_out, restrict
from grpo_jax.tasks.synthetic import arithmetic
from grpo_jax.tasks.tensorflow_datasets import from_tensorflow_datasets
from grpo_jax.types import Problem

__all__ = [
    "Mixture",
    "TaskSplit",
    "asked",
    "batch",
    "build",
    "drop_long",
    "host_slice",
    "is_held_out",
    "restrict",
]


def build(data: Data, *, chat: bool = False) -> TaskSplit:
    """The problems a config describes; `chat` says that text prompts will become the message of a user."""
    if isinstance(data, MixtureData):
        return _mixture(data, chat=chat)
    if isinstance(data, DifficultyData):
        source = build(data.source, chat=chat)
        return by_difficulty(source, field=data.field, edges=data.edges, weights=data.weights)
    split = _source(data)
    split, examples = few_shot.take(split, data.few_shot, held_out=split.held_out)
    return few_shot.show(split, examples, answer=_example_answer(data), chat=chat)


def _mixture(data: MixtureData, *, chat: bool) -> TaskSplit:
    """Sources are mixed by what they ask, and get their examples afterwards: those hide what overlaps."""
    sources = [_source(component.source) for component in data.components]
    held_out = [problem for split in sources for problem in split.held_out]
    taken = [
        few_shot.take(split, component.source.few_shot, held_out=held_out)
        for component, split in zip(data.components, sources, strict=True)
    ]
    mixed = mixture([split for split, _ in taken], [component.weight for component in data.components])
    shown: dict[object, Problem] = {}
    for component, (split, examples) in zip(data.components, taken, strict=True):
        after = few_shot.show(split, examples, answer=_example_answer(component.source), chat=chat)
        for old, new in zip((*split.train, *split.held_out), (*after.train, *after.held_out), strict=True):
            shown.setdefault(old.prompt, new)
    return replace(
        mixed,
        train=[shown[problem.prompt] for problem in mixed.train],
        held_out=[shown[problem.prompt] for problem in mixed.held_out],
    )


def asked(data: Data, located: Iterable[tuple[str, Row]], *, chat: bool = False) -> list[Problem]:
    """A person's rows as the problems that a run with this data would make of them, its examples before each.

    Args:
        data: of a run; a mixture has no one way to ask.
        located: (where it is, a row like those of the data), its answer being there or not.
        chat: as for `build`.

    Raises:
        ValueError: a row has not the data's fields; says where it is.
    """
    if isinstance(data, DifficultyData):
        data = data.source
    if isinstance(data, PresetData):
        problems = presets.asked(data.name, located, prompt=data.prompt, system_prompt=data.system_prompt)
    else:
        problems = (problem for place in located for problem in _asked(data, *place))
    problems = list(problems)
    if not data.few_shot:
        return problems
    split = _source(data)
    _, examples = few_shot.take(split, data.few_shot, held_out=split.held_out)
    return few_shot.before(problems, examples, answer=_example_answer(data), chat=chat)


def _asked(data: Data, location: str, row: Row) -> Iterator[Problem]:
    field = getattr(data, "answer_field", "answer")
    try:
        answer = lookup(row, field)
    except ValueError:
        answer = None
    answer = "" if answer is None else answer  # 0 is an answer
    mapper = Mapper(
        prompt=data.prompt,
        messages_field=getattr(data, "messages_field", None),
        system_prompt=data.system_prompt,
        answer_field=field,
        answer_pattern=None if answer == "" else getattr(data, "answer_pattern", None),
        answer_required=False,
    )
    return mapper.problems([(location, {**row, field: answer})])


def _example_answer(data: Data) -> str:
    if data.few_shot_answer is None:
        return PRESETS[data.name].example_answer
    return data.few_shot_answer


def _source(data: Data) -> TaskSplit:
    """The problems of one source, without examples."""
    match data:
        case ArithmeticData():
            return arithmetic(
                operations=data.operations,
                max_digits=data.max_digits,
                carries_required=data.carries == "required",
                max_terms=data.max_terms,
                prompt=data.prompt,
                system_prompt=data.system_prompt,
                size=data.size,
                held_out_fraction=data.held_out_fraction,
            )
        case ReasoningGymData():
            return from_reasoning_gym(**_own(data))
        case FileData():
            return from_files(
                path=data.path,
                mapper=_mapper(data, messages_field=data.messages_field),
                held_out_path=data.held_out_path,
                held_out_fraction=data.held_out_fraction,
                allow_overlap=data.allow_overlap,
            )
        case TfdsData():
            return from_tensorflow_datasets(
                name=data.name,
                train_split=data.split,
                mapper=_mapper(data),
                held_out_split=data.held_out_split,
                data_dir=data.data_dir,
                held_out_fraction=data.held_out_fraction,
                allow_overlap=data.allow_overlap,
            )
        case PresetData():
            return from_preset(**_own(data))
    raise ValueError(f"data is a {type(data).__name__}, expected one of {Data}.")


def _own(data: Data) -> dict[str, Any]:
    """The fields that are the source's own business."""
    return {name: value for name, value in asdict(data).items() if not name.startswith("few_shot")}


def _mapper(data: FileData | TfdsData, **more: str | None) -> Mapper:
    return Mapper(
        prompt=data.prompt,
        answer_field=data.answer_field,
        answer_pattern=data.answer_pattern,
        system_prompt=data.system_prompt,
        **more,
    )
