"""A model on problem sets: sampled, judged, written down, summed up.

    results = evaluate_model("runs/quickstart", samples=8)
    print(results)

A completion depends on the seed, the suite's name, the problem's place in it and the sample's number; nothing is drawn
from a training key. Completions are made in calls of a fixed number of problems. A call that a kill cut short is made
again, whole, so that an evaluation that went on has bit for bit the completions of one that was never interrupted.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from rich.console import Console

from grpo_jax import keys
from grpo_jax.evaluation import suites
from grpo_jax.evaluation.jobs import Job, make_jobs, open_ledger, sampling_of
from grpo_jax.evaluation.judging import judge
from grpo_jax.evaluation.ledger import Ledger
from grpo_jax.evaluation.results import SuiteResult, check_paired, read_suite, summarise
from grpo_jax.evaluation.subject import Subject, open_subject
from grpo_jax.evaluation.tables import DRAWN, Results
from grpo_jax.training.progress import Progress

WATCHED = {"correct": ("accuracy", "{:.1%}"), "length": ("length", "{:.1f}")}


def evaluate_model(
    model: str | Path,
    *,
    tasks: Sequence[str] = (),
    samples: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    max_tokens: int | None = None,
    problems: int = 0,
    seed: int = 0,
    chat: bool | None = None,
    system_prompt: str | None = None,
    step: int | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    data: Path | None = None,
    out: Path | None = None,
    baseline: Path | None = None,
    slots: int = 64,
    console: Console | None = None,
) -> Results:
    """Samples every problem of some suites from a model, judges every completion, and says how good it is.

    Everything is in `out`: a folder for each suite with every judged completion, and the results as JSON, text and
    LaTeX. Called again on a folder whose settings are the same, it goes on where it was, and does nothing twice.

    Args:
        model: a run folder, or a model in the forms of PretrainedModel.path.
        tasks: suites, as `evaluation.suites` names them; none means a run's own held-out problems.
        samples: completions per problem; None takes a run's evaluation.samples, else 4, and 1 at temperature 0.
        temperature: of sampling; None takes a run's evaluation.temperature, else 1.
        top_p: sample within this probability mass, 1 being off; None takes a run's rollout.top_p, else 1.
        top_k: sample among the k likeliest tokens, 0 being off; None takes a run's rollout.top_k, else 0.
        min_p: sample among tokens at least this likely, relative to the likeliest, 0 being off; None takes a run's
            rollout.min_p, else 0.
        repetition_penalty: by which positive logits of tokens seen before are divided, 1 being off; None takes a run's
            rollout.repetition_penalty, else 1. A run's logit_bias and forbidden_ids hold in any case.
        max_tokens: of a completion; None takes each suite's recommendation, or less if the context has no room for it.
        problems: how many of each suite, from the first on; 0 takes all.
        seed: of sampling.
        chat: wrap text prompts as a user's message; None does what a run does, and for a model what its tokenizer can.
        system_prompt: system message of every prompt, which makes prompts chats.
        step: the checkpoint of a run; None takes the newest.
        dtype: compute dtype of a model; a run has its own.
        data: folder of the presets' files; None takes the one that GRPO_JAX_DATA names.
        out: folder of the results; None is evaluations/step-N in the run's folder, or evaluations/NAME.
        baseline: folder of another model's results on the same problems, for a paired comparison.
        slots: completions decoded at a time; fewer take less memory.
        console: where to show progress; None is standard error.

    Raises:
        ValueError: names what is wrong, before anything is sampled.
    """
    if system_prompt is not None and chat is False:
        raise ValueError("system_prompt: a system message makes prompts chats, expected chat not to be False")
    for name, value, least in (("problems", problems, 0), ("slots", slots, 1)):
        if value < least:
            raise ValueError(f"{name}: got {value}, expected at least {least}")
    keys.run_key(seed)  # what is no seed is refused before anything is written
    subject = open_subject(model, step=step, chat=chat, dtype=dtype)
    sampling = sampling_of(
        subject,
        samples=samples,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    config = subject.opened.config
    wanted = [
        suites.load(name, own=config, data=data, problems=problems, system_prompt=system_prompt)
        for name in tasks or ([suites.OWN] if config else [])
    ]
    names = [suite.name for suite in wanted]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tasks: got {names}, expected at least one, and none of a name twice")
    jobs, notes = make_jobs(subject, wanted, sampling, max_tokens=max_tokens, seed=seed, slots=slots)
    others = {job.suite.name: _baseline(job, baseline) for job in jobs} if baseline else {}
    folder = out or subject.folder
    with ExitStack() as stack:
        # All are opened before the first is sampled: a folder of other settings is refused at once.
        ledgers = [stack.enter_context(open_ledger(job, subject, folder)) for job in jobs]
        for job, ledger in zip(jobs, ledgers, strict=True):
            _fill(job, ledger, subject, console or Console(stderr=True))
        found = tuple(
            summarise(
                job.suite.name,
                ledger.rows,
                ledger.settings,
                baseline=others[job.suite.name].correct if others else None,
            )
            for job, ledger in zip(jobs, ledgers, strict=True)
        )
    results = Results(
        model=subject.name,
        suites=found,
        folder=folder,
        baseline=str(baseline or ""),
        baselines=others,
        notes=(*notes, *_unlike(found, others)),
    )
    save(results)
    return results


def save(results: Results) -> None:
    """Writes the results into their folder as JSON, text and LaTeX."""
    numbers = json.dumps(results.numbers(), indent=2, ensure_ascii=False)
    for name, content in (
        ("results.json", numbers + "\n"),
        ("results.txt", str(results)),
        ("results.tex", results.latex()),
    ):
        (results.folder / name).write_text(content, encoding="utf-8")


def _fill(job: Job, ledger: Ledger, subject: Subject, console: Console) -> None:
    opened = subject.opened
    with Progress(
        total=len(job.prompt_ids),
        start=len(ledger) // job.sampling.group_size,
        description=job.suite.name,
        console=console,
        watched=WATCHED,
    ) as progress:
        judge(
            job,
            ledger,
            model=(opened.graphdef, opened.params),
            tokenizer=opened.tokenizer,
            show=progress.update,
        )


def _baseline(job: Job, folder: Path) -> SuiteResult:
    result = read_suite(folder, job.suite.name)
    ours = [(problem.prompt_text, problem.answer) for problem in job.suite.problems]
    check_paired(ours, result.questions, name=job.suite.name, folder=folder)
    return result


def _unlike(found: Sequence[SuiteResult], others: Mapping[str, SuiteResult]) -> list[str]:
    """A note for every setting of sampling in which the baseline differs: it may explain a difference."""
    return [
        f"{suite.name}: {name} is {suite.settings[name]!r} here and {theirs!r} in the baseline."
        for suite in found
        if suite.name in others
        for name in ("samples", "temperature", *DRAWN, "logit_bias", "forbidden_ids", "max_tokens", "chat")
        if (theirs := others[suite.name].settings.get(name)) != suite.settings[name]
    ]
