"""`grpo-jax COMMAND …`: thin commands over the library, with errors in one line."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_jax import experiment
from grpo_jax.types import InputError, TrainingStopped

USAGE = """usage: grpo-jax COMMAND [ARGUMENTS]

  train EXPERIMENT.py [--section.field VALUE …]   warm start, sample, judge, update, evaluate, save
                                                  (--resume continues, --distributed joins the other hosts;
                                                  --help lists every field)
  report RUN                                      write RUN/report.html from a run's metrics
  export RUN --to DIR [--step N] [--adapter]      write a checkpoint for Transformers, or LoRA's adapters for PEFT
  eval RUN_OR_MODEL [--tasks gsm8k,aime24 …]      accuracy on problem sets with intervals; --help lists the options
  sample RUN_OR_MODEL [--prompt TEXT …]           completions with rewards, of prompts, a file or standard input
  plan --topology v5p:2x2x2 --config EXPERIMENT.py [--section.field VALUE …]
                                                  does it fit chips that are not here, and what would it cost there
"""


def train(arguments: Sequence[str]) -> None:
    """Runs an experiment file with overrides."""
    if not arguments or arguments[0].startswith("-"):
        if "--help" in arguments or "-h" in arguments:
            experiment.override(experiment.Config(), ["--help"], "grpo-jax train EXPERIMENT.py")
        raise ValueError("train: the first argument is an experiment file, e.g. experiments/quickstart.py")
    path, *flags = arguments
    config = experiment.override(experiment.load(path), flags, f"grpo-jax train {path}")
    # Imported after parsing, so that --help and a mistyped flag answer at once.
    from grpo_jax.training import hosts, loop, setup

    hosts.connect(config.distributed)
    run = setup.prepare(config)
    if hosts.is_first():
        print(f"run folder: {run.folder}", flush=True)
    # Any other error from here on is ours, and shows where it comes from.
    with one_line(InputError, TrainingStopped):
        try:
            state = loop.train(run)
        except (ValueError, OSError, ImportError) as error:
            if isinstance(error, InputError):
                raise
            raise RuntimeError("the run failed") from error
    if hosts.is_first():
        print(closing(run.folder, path, finished=not state.warm and int(state.step) >= config.train.steps))


def closing(folder: Path, experiment_path: str, *, finished: bool) -> str:
    """The last words of a run: what it achieved, where to look, and what to try next."""
    from grpo_jax.report import write_report
    from grpo_jax.training.records import read_rows

    lines = []
    evaluated = [row for row in read_rows(folder / "metrics.jsonl") if row.get("eval/accuracy") is not None]
    if evaluated:
        before, after = (
            f"{row['eval/accuracy']:.1%} [{row['eval/accuracy_low']:.1%}, {row['eval/accuracy_high']:.1%}]"
            for row in (evaluated[0], evaluated[-1])
        )
        lines += [
            f"held-out accuracy (95 % interval): {before} before GRPO, {after} after {evaluated[-1]['step']} steps"
        ]
        lines += [f"report: {write_report(folder)}"]
    resume = f"{this_program()} train {folder / 'config.py'} --resume"
    if not finished:
        return "\n".join([*lines, f"stopped and saved; to go on: {resume}"])
    return "\n".join(
        [
            *lines,
            f"next: {this_program()} train {experiment_path} --loss.aggregation token"
            "   (one change, then compare the two reports)",
        ]
    )


def this_program() -> str:
    """How the reader can call this program again: by name only if the shell would find it."""
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m grpo_jax"
    return "grpo-jax" if shutil.which("grpo-jax") else sys.argv[0]


def report(arguments: Sequence[str]) -> None:
    """Writes the report of a run."""
    if len(arguments) != 1:
        raise ValueError(f"report: expected one run folder, got {list(arguments)}")
    from grpo_jax.report import write_report

    print(write_report(Path(arguments[0])))


class Parser(argparse.ArgumentParser):
    """argparse whose complaints are errors in one line, like all others."""

    def error(self, message: str):
        raise ValueError(f"{self.prog.removeprefix('grpo-jax ')}: {message}")


def export(arguments: Sequence[str]) -> None:
    """Writes a run's policy as a Transformers folder, or its adapters as a PEFT folder."""
    parser = Parser(prog="grpo-jax export", description=export.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="a new or empty folder to write"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint after N rollouts (default: the newest)"
    )
    parser.add_argument(
        "--adapter", action="store_true", help="LoRA's adapters alone (default: merged into the model)"
    )
    options = parser.parse_args(arguments)
    from grpo_jax.training.export import export_run

    step = export_run(options.run, options.to, step=options.step, adapter=options.adapter)
    print(
        f"{options.to}: the {'adapters' if options.adapter else 'model'} of {options.run} after {step} steps"
    )


def evaluate(arguments: Sequence[str]) -> None:
    """Samples a run or a model on problem sets, judges every completion, and prints the accuracy with intervals."""
    from grpo_jax.evaluation import command

    parser = Parser(prog="grpo-jax eval", description=evaluate.__doc__)
    command.add_options(parser)
    options = parser.parse_args(arguments)
    try:
        print(command.run(options), end="")
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)


def sample(arguments: Sequence[str]) -> None:
    """Samples completions of prompts from a run or a model, and judges those that have an answer."""
    from grpo_jax.sampling import command

    parser = Parser(prog="grpo-jax sample", description=sample.__doc__)
    command.add_options(parser)
    command.run(parser.parse_args(arguments))


def plan(arguments: Sequence[str]) -> None:
    """Compiles a run's programs for chips that are not here."""
    # Nothing runs, so a chip that is in use here is left alone. JAX reads this when it is imported.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from grpo_jax.planning import command

    sys.exit(command.run(arguments, Parser))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "train": train,
    "report": report,
    "export": export,
    "eval": evaluate,
    "sample": sample,
    "plan": plan,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. A mistake of the reader's is one line on stderr and exit status 2.

    Set GRPO_JAX_TRACEBACK=1 to see where such an error was raised.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    command, *rest = arguments
    if command not in COMMANDS:
        print(
            f"grpo-jax: error: no command {command!r}; expected one of {', '.join(COMMANDS)}", file=sys.stderr
        )
        sys.exit(2)
    with one_line(ValueError, OSError, ImportError):
        COMMANDS[command](rest)


@contextmanager
def one_line(*kinds: type[Exception]) -> Iterator[None]:
    """Prints errors of these kinds as one message on stderr, and exits with status 2."""
    try:
        yield
    except kinds as error:
        if os.environ.get("GRPO_JAX_TRACEBACK"):
            raise
        print(f"grpo-jax: error: {error}", file=sys.stderr)
        sys.exit(2)
