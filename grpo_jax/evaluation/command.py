"""The options of `grpo-jax eval`: those of `evaluate_model`, and what to print."""

import argparse
import json
from pathlib import Path

from grpo_jax.tasks.presets import FOLDER, PRESETS


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds every option to a parser."""
    add = parser.add_argument
    add("model", help="a run's folder, a Transformers folder, a .gguf file, package:NAME or org/name@commit")
    add(
        "--tasks",
        type=lambda text: [name.strip() for name in text.split(",")],
        default=[],
        metavar="A,B,…",
        help=f"{', '.join(PRESETS)} (or NAME=FILE); run, the run's own held-out problems; another run's folder or an "
        "experiment file, for its held-out problems (default for a run: run)",
    )
    add("--samples", type=int, metavar="K", help="completions per problem (default: the run's, else 4)")
    add("--temperature", type=float, metavar="X", help="of sampling (default: the run's, else 1)")
    add(
        "--top-p",
        type=float,
        metavar="X",
        help="sample within this probability mass (1: off; default: the run's rollout.top_p)",
    )
    add(
        "--top-k",
        type=int,
        metavar="K",
        help="sample among the K likeliest tokens (0: off; default: the run's rollout.top_k)",
    )
    add(
        "--min-p",
        type=float,
        metavar="X",
        help="sample among tokens at least X as likely as the likeliest (0: off; default: the run's rollout.min_p)",
    )
    add(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="divide positive logits of tokens seen before, multiply negative ones (1: off; default: the run's)",
    )
    add("--max-tokens", type=int, metavar="N", help="of a completion (default: what the task recommends)")
    add("--problems", type=int, default=0, metavar="N", help="the first N of each task (default: all)")
    add("--seed", type=int, default=0, metavar="N", help="of sampling (default: 0)")
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="apply the chat template (default: as the run does; for a model, if its tokenizer has one)",
    )
    add("--system-prompt", metavar="TEXT", help="system message of every prompt")
    add("--step", type=int, metavar="N", help="the run's checkpoint after N rollouts (default: the newest)")
    add(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="compute dtype of a model; a run has its own (default: float32)",
    )
    add("--data", type=Path, metavar="DIR", help=f"where the tasks' files are (default: ${FOLDER})")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of every judged completion and the results; the same command goes on where it was killed "
        "(default: RUN/evaluations/step-N, or evaluations/MODEL)",
    )
    add(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="folder of another evaluation of the same problems, to compare with problem by problem",
    )
    add("--slots", type=int, default=64, metavar="N", help="completions decoded at a time (default: 64)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON in place of text")
    form.add_argument("--latex", action="store_true", help="print LaTeX in place of text")


def run(options: argparse.Namespace) -> str:
    """Evaluates, and gives what to print."""
    from grpo_jax.evaluation.model import evaluate_model
    from grpo_jax.report.accuracies import write_picture

    arguments = {name: value for name, value in vars(options).items() if name not in ("json", "latex")}
    results = evaluate_model(**arguments)
    for name in ("accuracy.svg", "accuracy.png"):
        write_picture(results, results.folder / name)
    if options.json:
        return json.dumps(results.numbers(), indent=2, ensure_ascii=False) + "\n"
    if options.latex:
        return results.latex()
    kept = "every judged completion, the tables as text, JSON and LaTeX, and a picture (accuracy.png)"
    return f"{results}\n{results.folder}: {kept}\n"
