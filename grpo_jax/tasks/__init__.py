"""Where problems come from: synthetic arithmetic, files, reasoning-gym; splits cannot overlap."""

from grpo_jax.config import ArithmeticData, FileData, ReasoningGymData
from grpo_jax.tasks.files import from_files
from grpo_jax.tasks.iteration import batch, host_slice
from grpo_jax.tasks.reasoning_gym import from_reasoning_gym
from grpo_jax.tasks.rows import Mapper
from grpo_jax.tasks.splitting import TaskSplit, is_held_out
from grpo_jax.tasks.synthetic import arithmetic

__all__ = ["TaskSplit", "batch", "build", "host_slice", "is_held_out"]


def build(data: ArithmeticData | ReasoningGymData | FileData) -> TaskSplit:
    """The problems a config describes."""
    match data:
        case ArithmeticData():
            return arithmetic(
                operations=data.operations,
                max_digits=data.max_digits,
                carries_required=data.carries == "required",
                size=data.size,
                held_out_fraction=data.held_out_fraction,
            )
        case ReasoningGymData():
            return from_reasoning_gym(
                task=data.task,
                options=data.options,
                size=data.size,
                prompt=data.prompt,
                held_out_fraction=data.held_out_fraction,
            )
        case FileData():
            mapper = Mapper(
                prompt=data.prompt,
                answer_field=data.answer_field,
                answer_pattern=data.answer_pattern,
                messages_field=data.messages_field,
                system_prompt=data.system_prompt,
            )
            return from_files(
                path=data.path,
                mapper=mapper,
                held_out_path=data.held_out_path,
                held_out_fraction=data.held_out_fraction,
            )
    raise ValueError(
        f"data is a {type(data).__name__}, expected ArithmeticData, ReasoningGymData or FileData."
    )
