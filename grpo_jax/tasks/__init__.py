"""Where problems come from, with splits that cannot overlap, and the order they are trained in."""

from dataclasses import asdict

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
from grpo_jax.tasks.files import from_files
from grpo_jax.tasks.iteration import batch, host_slice
from grpo_jax.tasks.mixing import by_difficulty, drop_long, mixture
from grpo_jax.tasks.presets import from_preset
from grpo_jax.tasks.reasoning_gym import from_reasoning_gym
from grpo_jax.tasks.rows import Mapper
from grpo_jax.tasks.splitting import Mixture, TaskSplit, is_held_out
from grpo_jax.tasks.synthetic import arithmetic
from grpo_jax.tasks.tensorflow_datasets import from_tensorflow_datasets

__all__ = ["Mixture", "TaskSplit", "batch", "build", "drop_long", "host_slice", "is_held_out"]


def build(data: Data) -> TaskSplit:
    """The problems a config describes."""
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
            return from_reasoning_gym(**asdict(data))
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
            return from_preset(**asdict(data))
        case MixtureData():
            parts = [build(component.source) for component in data.components]
            return mixture(parts, [component.weight for component in data.components])
        case DifficultyData():
            return by_difficulty(build(data.source), field=data.field, edges=data.edges, weights=data.weights)
    raise ValueError(f"data is a {type(data).__name__}, expected one of {Data}.")


def _mapper(data: FileData | TfdsData, **more: str | None) -> Mapper:
    return Mapper(
        prompt=data.prompt,
        answer_field=data.answer_field,
        answer_pattern=data.answer_pattern,
        system_prompt=data.system_prompt,
        **more,
    )
