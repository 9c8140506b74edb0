"""Problem sets to compare models on: the problems, how long an answer may be, and who judges it.

A suite is named on the command line and in a notebook alike:

    run                  the held-out problems of the run that is evaluated, judged as it judges success
    RUN or FILE.py       the same of another run, or of an experiment file; all are called held-out in the results
    gsm8k, aime24, …     a preset: its test problems, its judge, its recommended lengths
    gsm8k=PATH           a preset whose file is elsewhere, in the forms of PresetData.path
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from grpo_jax import environments, experiment, tasks
from grpo_jax.config import Config, RewardFunction, RolloutConfig
from grpo_jax.rewards import scoring
from grpo_jax.rewards.votes import Vote, voting
from grpo_jax.tasks.presets import PRESETS, evaluation_problems
from grpo_jax.types import Message, Problem

OWN, HELD_OUT = "run", "held-out"


class Talk(NamedTuple):
    """What answers the model between its turns."""

    environment: environments.Environment
    max_turns: int
    described: list[Any]
    """The environment's name, its options and max_turns, for the settings."""


def plain(value: Any) -> Any:
    """`value` as something whose repr is the same in every process: a set has an order there, an object no address."""
    if isinstance(value, Mapping):
        return sorted((repr(plain(key)), plain(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return sorted(repr(plain(item)) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else type(value).__name__


@dataclass(frozen=True)
class Suite:
    """Problems with the judge that says which completions solve them: those it gives 1 or more."""

    name: str
    problems: Sequence[Problem]
    judge: RewardFunction
    reward: scoring.WeightedReward
    """The judge, built."""
    vote: Vote | None
    """What a completion votes for in maj@k; None if the judge extracts no answer."""
    max_completion_length: int
    """Recommended, in tokens."""
    on_failure: Literal["error", "unscored"]
    """What a completion means that the judge failed on; an unscored one counts as wrong, and is counted."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, besides the model's stop tokens; with an environment, a turn."""
    talk: Talk | None = None
    """None where a completion is one turn."""

    @property
    def digest(self) -> str:
        """Equal for equal problems in equal order. What a judge needs besides, as a program's tests, is in the metadata."""
        parts = (repr((p.prompt, p.answer, plain(p.metadata))) for p in self.problems)
        return blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def load(
    name: str,
    *,
    own: Config | None = None,
    data: Path | None = None,
    problems: int = 0,
    system_prompt: str | None = None,
) -> Suite:
    """The suite a name means.

    Args:
        name: as in the module's docstring.
        own: config of the run that is evaluated, for the suite `run`.
        data: folder of the presets' files; None takes the one that GRPO_JAX_DATA names.
        problems: how many of them, from the first on; 0 takes all.
        system_prompt: system message of every prompt.

    Raises:
        ValueError: there is no such suite, no such file, or a problem that the judge cannot judge.
    """
    preset, _, path = name.partition("=")
    if preset in PRESETS:
        suite = _preset(preset, path=path, data=data)
    elif name == OWN and own is not None:
        suite = _held_out(own)
    elif config_file := _config_file(name):
        suite = _held_out(experiment.load(config_file))
    else:
        known = f"{', '.join(PRESETS)}, a run folder or an experiment file"
        raise ValueError(f"tasks: got {name!r}, expected {OWN + ', ' if own else ''}{known}")
    chosen = suite.problems[: problems or None]
    if system_prompt is not None:
        chosen = [with_system(problem, system_prompt) for problem in chosen]
    scoring.check([suite.reward], chosen)
    return replace(suite, problems=tuple(chosen))


def with_system(problem: Problem, text: str) -> Problem:
    """The problem with a system message before its prompt, in place of the one it has, if it has one."""
    turns = (Message("user", problem.prompt),) if isinstance(problem.prompt, str) else problem.prompt
    turns = tuple(turn for turn in turns if turn.role != "system")
    return replace(problem, prompt=(Message("system", text), *turns))


def _preset(name: str, *, path: str, data: Path | None) -> Suite:
    preset = PRESETS[name]
    judge = RewardFunction(preset.reward)
    return Suite(
        name=name,
        problems=evaluation_problems(name, path=path, folder=data),
        judge=judge,
        reward=scoring.build([judge])[0],
        vote=voting(judge),
        max_completion_length=preset.max_completion_length,
        on_failure="unscored",
    )


def _held_out(config: Config) -> Suite:
    """The held-out problems of an experiment under the reward that says whether a completion is right."""
    problems = tasks.build(config.data, chat=config.tokenizer.chat).held_out
    if not problems:
        raise ValueError("tasks: this experiment holds out no problems (data.held_out_fraction)")
    names = [reward.name for reward in config.reward.functions]
    success = config.evaluation.success
    judge = config.reward.functions[names.index(success) if success else 0]
    talk = _talk(config.rollout)
    stops = (*config.rollout.stop_strings, *(talk.environment.stop_strings if talk else ()))
    return Suite(
        name=HELD_OUT,
        problems=problems,
        judge=judge,
        reward=scoring.build([judge])[0],
        vote=voting(judge),
        max_completion_length=config.rollout.max_completion_length,
        on_failure=config.reward.on_failure,
        stop_strings=tuple(dict.fromkeys(stops)),
        talk=talk,
    )


def _talk(options: RolloutConfig) -> Talk | None:
    environment = environments.build(options.environment, options.environment_options)
    described = [options.environment, dict(options.environment_options), options.max_turns]
    return None if environment is None else Talk(environment, options.max_turns, described)


def _config_file(name: str) -> Path | None:
    path = Path(name)
    if (path / "config.py").is_file():
        return path / "config.py"
    return path if path.suffix == ".py" and path.is_file() else None
