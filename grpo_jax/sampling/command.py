"""`grpo-jax sample`: its options, and what it does with them."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from grpo_jax.config import RewardFunction
from grpo_jax.sampling import output, prompts
from grpo_jax.sampling.sampler import Completion, open_sampler
from grpo_jax.types import Problem


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "model", metavar="RUN_OR_MODEL", help="a run folder, or a model as model.path names one"
    )
    parser.add_argument(
        "--prompt", action="append", default=[], help="a prompt as it stands; may be repeated"
    )
    parser.add_argument(
        "--file",
        help="prompts: .jsonl, .csv, .parquet or .arrow, with a field prompt (or messages) and, to be judged, answer; "
        "or rows like those the run was trained on, asked as it asked them (template, system prompt, few-shot examples). "
        "Without --prompt and --file, JSON lines on standard input",
    )
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="completions per prompt")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers")
    parser.add_argument(
        "--step", type=int, metavar="N", help="the run after N rollouts (default: the newest)"
    )
    parser.add_argument("--format", choices=("text", "table", "jsonl"), default="text")
    parser.add_argument(
        "--reward", action="append", metavar="NAME", help="judge by this, not by the run's; may be repeated"
    )
    parser.add_argument("--chat", action="store_true", help="a model: wrap prompts by its chat template")
    settings = parser.add_argument_group(
        "sampling (default: as the run was trained; a model at temperature 1)"
    )
    for name, kind in {
        "temperature": float,
        "top_k": int,
        "top_p": float,
        "min_p": float,
        "max_tokens": int,
    }.items():
        settings.add_argument(f"--{name}", type=kind, default=argparse.SUPPRESS)
    settings.add_argument("--repetition_penalty", type=float, default=argparse.SUPPRESS)
    settings.add_argument(
        "--stop", action="append", dest="stop_strings", metavar="TEXT", default=argparse.SUPPRESS
    )


SETTINGS = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "repetition_penalty", "stop_strings")


def run(options: argparse.Namespace) -> None:
    """Samples and prints, prompt by prompt; progress goes to standard error if that is a terminal."""
    rewards = None if options.reward is None else [RewardFunction(name) for name in options.reward]
    sampler = open_sampler(options.model, step=options.step, rewards=rewards, chat=options.chat)
    problems: list[str | Problem] = list(options.prompt)
    if options.file:
        problems += prompts.from_file(options.file, sampler.opened.config)
    if not problems and not sys.stdin.isatty():
        problems += prompts.from_lines(sys.stdin, sampler.opened.config)
    if not problems:
        raise ValueError(
            "sample: no prompts; expected --prompt TEXT, --file FILE, or JSON lines on standard input"
        )
    settings = {name: getattr(options, name) for name in SETTINGS if hasattr(options, name)}
    if "stop_strings" in settings:
        settings["stop_strings"] = tuple(settings["stop_strings"])
    groups = sampler.stream(problems, samples=options.samples, seed=options.seed, **settings)
    groups = watched(groups, total=len(problems))
    if options.format == "table":
        output.table(groups, Console())
        return
    for line in (output.text if options.format == "text" else output.jsonl)(groups):
        print(line, flush=True)


def watched(groups: Iterable[Sequence[Completion]], *, total: int) -> Iterator[Sequence[Completion]]:
    """The groups as they come, counted on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from groups
        return
    start, tokens = time.perf_counter(), 0
    with console.status(f"0/{total} prompts") as status:
        for done, group in enumerate(groups, start=1):
            tokens += sum(completion.tokens for completion in group)
            rate = tokens / (time.perf_counter() - start)
            status.update(f"{done}/{total} prompts, {tokens} tokens, {rate:.0f} tokens/s")
            yield group
