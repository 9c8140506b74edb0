"""Recorded rollouts in a run: written while it samples (`rollout.record`), trained on without sampling (`rollout.replay`).

    run/rollouts/step-000001.parquet    one file a step, a row per completion, in the order in which they were judged,
                                        round after round where dynamic sampling took several

A step that is made again, after a kill, takes the place of what it left. What is played back must be of the very
prompts the run meets at that step: the same data, tokenizer, seed and sizes. Rewards are judged anew.
"""

from collections.abc import Sequence
from pathlib import Path

from grpo_jax.config import Config, RolloutConfig
from grpo_jax.rollout import ReplayEngine, Sampling, recordings
from grpo_jax.rollout.replay import lines
from grpo_jax.types import InputError, Rollout

FOLDER = "rollouts"


def call_name(step: int) -> str:
    """What the rollout of a step is called in a recording."""
    return f"step-{step:06d}"


def write(folder: Path, rollout: Rollout, *, step: int) -> None:
    """Records the rollout of a step in the run's folder."""
    recordings.write(folder / FOLDER, lines(rollout, call=call_name(step)))


def open_replay(config: Config) -> ReplayEngine | None:
    """What is played back, if anything is.

    Raises:
        ValueError: there is no such recording, or it lacks a step or has one of another size; names rollout.replay.
    """
    options = config.rollout
    if not options.replay:
        return None
    if not Path(options.replay).exists():
        raise ValueError(
            f"rollout.replay: got {options.replay!r}, expected a recording: there is no such file or folder"
        )
    try:
        replay = ReplayEngine(options.replay, max_prompt_length=options.max_prompt_length)
    except (OSError, ValueError) as error:
        raise ValueError(f"rollout.replay: {error}") from None
    for step in range(1, config.train.steps + 1):
        found = replay.calls.get(call_name(step))
        if found is None:
            raise ValueError(
                f"rollout.replay: {options.replay} has no {call_name(step)}, expected all up to train.steps ="
                f" {config.train.steps}; it has {_listed(replay.calls)}"
            )
        _check_size(f"{call_name(step)} of {options.replay}", found, options)
    return replay


def completions_per_round(options: RolloutConfig) -> int:
    """Completions of a step, or of each of its rounds where sampling is dynamic."""
    return options.batch_size * options.group_size


def rounds(replay: ReplayEngine, options: RolloutConfig, *, step: int) -> int:
    """How many rounds a recorded step took. All are played back, so that the data go on where they did."""
    return replay.calls[call_name(step)] // completions_per_round(options)


def _check_size(what: str, found: int, options: RolloutConfig) -> None:
    """Raises unless `what` has the completions of a step of such a run."""
    wanted = completions_per_round(options)
    count, left = divmod(found, wanted)
    sizes = f"rollout.batch_size = {options.batch_size} times rollout.group_size = {options.group_size}"
    if options.dynamic_sampling:
        if left or not count:
            raise ValueError(
                f"rollout.replay: {what} has {found} completions, expected rounds of {wanted}: {sizes}"
            )
        if count > options.max_rounds:
            raise ValueError(
                f"rollout.max_rounds: got {options.max_rounds}, but {what} has {count} rounds of dynamic sampling"
            )
    elif found != wanted:
        several = f"; rollout.dynamic_sampling True plays back {count} rounds of as many" if not left else ""
        raise ValueError(
            f"rollout.replay: {what} has {found} completions, expected {wanted}: {sizes}{several}"
        )


def replayed(
    replay: ReplayEngine,
    prompt_ids: Sequence[Sequence[int]],
    options: RolloutConfig,
    *,
    step: int,
    vocab_size: int,
    number: int = 0,
) -> Rollout:
    """The recorded rollout of a round of a step whose prompts are these, for a model of `vocab_size` tokens.

    Raises:
        InputError: it is of other prompts, or does not fit the config; names rollout.replay.
    """
    sampling = Sampling(max_tokens=options.max_completion_length, group_size=options.group_size)
    size = completions_per_round(options)
    try:
        rollout = replay.generate(
            prompt_ids,
            sampling=sampling,
            call=call_name(step),
            part=slice(number * size, (number + 1) * size),
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"rollout.replay: {error}. Data, tokenizer, seed, batch_size, group_size and max_completion_length are to be"
            " those of the recording"
        ) from error
    ids = rollout.completion_ids
    unknown = ids[(ids < 0) | (ids >= vocab_size)]
    if len(unknown):
        raise InputError(
            f"rollout.replay: {call_name(step)} of {options.replay} has token {unknown[0]}, expected ids from 0 to below"
            f" the model's vocabulary of {vocab_size}"
        )
    if (rollout.sampled is not None) != bool(options.environment):
        recorded = "without" if rollout.sampled is None else "with"
        raise InputError(
            f"rollout.environment: got {options.environment!r}, but {options.replay} was recorded {recorded} one"
        )
    return rollout


def _listed(calls: Sequence[str]) -> str:
    names = sorted(calls)
    return (
        ", ".join(names) or "none"
        if len(names) < 6
        else f"{len(names)} calls, from {names[0]} to {names[-1]}"
    )
