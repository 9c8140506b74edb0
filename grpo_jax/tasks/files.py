"""Problems from files. A bad line is an error that says where it is."""

from grpo_jax.tasks.readers import rows
from grpo_jax.tasks.rows import Mapper
from grpo_jax.tasks.splitting import TaskSplit, distinct, split, two_sources
from grpo_jax.types import Problem


def from_files(
    *,
    path: str,
    mapper: Mapper,
    held_out_path: str | None = None,
    held_out_fraction: float = 0.1,
    allow_overlap: bool = False,
) -> TaskSplit:
    """Problems of a file, held out by hash or taken from a second file."""
    problems = read(path, mapper, "data.path")
    if held_out_path is None:
        return split(problems, held_out_fraction)
    return two_sources(
        problems, read(held_out_path, mapper, "data.held_out_path"), allow_overlap=allow_overlap
    )


def read(path: str, mapper: Mapper, field: str) -> list[Problem]:
    """The distinct problems of the files a path means."""
    problems = distinct(mapper.problems(rows(path, field)))
    if not problems:
        raise ValueError(f"{field}: {path} holds no problems.")
    return problems
