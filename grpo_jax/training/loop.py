"""The run: warm start, then sample, judge, update, evaluate, save, show.

    train          the running order
    warm_start     supervised steps on reference answers
    policy_step    one rollout and its optimizer steps

What these need was built by `setup.prepare`; what changes is the `TrainState`, taken and returned.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax import amounts
from grpo_jax.environments import conversations
from grpo_jax.tasks.splitting import shorten
from grpo_jax.training import batches, hosts, sharding
from grpo_jax.training.agreement import Agreement, truncation
from grpo_jax.training.collect import begin, collect, next_examples
from grpo_jax.training.held_out import evaluate
from grpo_jax.training.journal import Journal, open_journal
from grpo_jax.training.optimize import optimize
from grpo_jax.training.records import Position
from grpo_jax.training.setup import Example, Run, initial_state, placed, policy_stage
from grpo_jax.types import InputError, TrainingStopped, TrainState
from grpo_jax.unused import unused

POLICY, WARM_START = "policy", "warm_start"


def train(run: Run) -> TrainState:
    """Runs every stage that is still to do, and returns the final state."""
    state, resumed = initial_state(run), None
    if run.config.run.resume:
        state = run.checkpoints.restore(state)
        resumed = position(state)
    journal = open_journal(run.folder, resumed=resumed, wandb_project=run.config.run.wandb_project)
    # However the run ends, what was handed to the checkpoint writer reaches the disk.
    with (
        closing(run.checkpoints),
        journal,
        closing(run.sampler),
        hosts.leaving_together(),
        stop_request() as stopping,
    ):
        for line in unused(run.config):
            journal.note(line)
        if state.warm:
            state = warm_start(run, state, journal, stopping)
        if not state.warm:
            if resumed is None or resumed.stage == WARM_START:
                evaluate_before(run, state, journal)
            state = improve(run, state, journal, stopping)
    return state


def warm_start(run: Run, state: TrainState, journal: Journal, stopping: Callable[[], bool]) -> TrainState:
    """Supervised steps on reference answers, until the stage is done or a stop is asked for."""
    options = run.config.warm_start
    shown = {id(e): demonstrated(run, e) for e in run.train}
    size = max(len(ids) for ids, _ in shown.values())
    with journal.stage(WARM_START, total=options.steps, start=int(state.step)) as log:
        while state.step < options.steps and not stopping():
            with journal.timer("update"):
                examples = next_examples(run, state, options.batch_size)
                batch = batches.supervised_batch(
                    [e.prompt_ids for e in examples],
                    [shown[id(e)][0] for e in examples],
                    learnt=[shown[id(e)][1] for e in examples],
                    prompt_size=run.config.rollout.max_prompt_length,
                    size=size,
                )
                parts = amounts.warm_micro_batches(run.config) * sharding.row_shards(run.mesh)
                batch = sharding.pad_rows(batch, parts)
                state, metrics = run.warm_update(state, sharding.split_rows(batch, run.mesh))
                state = replace(state, step=state.step + 1, cursor=state.cursor + options.batch_size)
                refuse_if_stuck(run, state)
            log(int(state.step), metrics)
            if state.step < options.steps and is_multiple(int(state.step), run.config.checkpoint.every):
                save(run, state)
    if state.step < options.steps:
        save(run, state)
        return state
    fresh = placed(run, policy_stage(run, replace(state, frozen=None)))
    return replace(fresh, frozen=state.frozen)


def demonstrated(run: Run, example: Example) -> tuple[list[int], list[bool]]:
    """What a warm start learns to complete a prompt with, and which tokens of it train.

    It is the reference answer, or a conversation if the environment demonstrates one.

    Raises:
        InputError: it is longer than a completion may be.
    """
    options = run.config.rollout
    if hasattr(run.environment, "demonstrate"):
        return conversations.demonstration(
            run.environment,
            example.problem,
            run.tokenizer,
            limit=options.max_completion_length,
            stop_strings=options.stop_strings,
        )
    answer = example.problem.answer
    ids = run.tokenizer.encode_completion(answer)
    if len(ids) > options.max_completion_length:
        raise InputError(
            f"rollout.max_completion_length: got {options.max_completion_length}, but the warm start teaches a reference "
            f"answer of {len(ids)} tokens, the stop token included: {shorten(answer)!r}"
        )
    return ids, [True] * len(ids)


def evaluate_before(run: Run, state: TrainState, journal: Journal) -> None:
    """Held-out accuracy before the first policy step, and the checkpoint that goes with it."""
    with journal.stage(POLICY, total=run.config.train.steps, start=0) as log:
        result = evaluate(run, state, journal)
        log(0, result.metrics())
    save(run, state, accuracy=result.accuracy)


def improve(run: Run, state: TrainState, journal: Journal, stopping: Callable[[], bool]) -> TrainState:
    """GRPO: rollouts and updates, with evaluations and checkpoints between them."""
    total = run.config.train.steps
    with journal.stage(POLICY, total=total, start=int(state.step)) as log:
        saved, agreement = int(state.step), Agreement(run.config)
        if warning := truncation(run.config):
            journal.note(warning)
        while state.step < total and not stopping():
            state, metrics = policy_step(run, state, journal)
            step = int(state.step)
            if warning := agreement.warning(step, metrics["sampler/log_prob_gap"]):
                journal.note(warning)
            accuracy = None
            if step == total or is_multiple(step, run.config.evaluation.every):
                result = evaluate(run, state, journal)
                metrics, accuracy = {**metrics, **result.metrics()}, result.accuracy
            log(step, metrics)
            if accuracy is not None or is_multiple(step, run.config.checkpoint.every) or stopping():
                save(run, state, accuracy=accuracy)
                saved = step
        if saved < state.step:
            save(run, state)
    return state


def policy_step(run: Run, state: TrainState, journal: Journal) -> tuple[TrainState, Mapping[str, float]]:
    """One rollout, judged, and the optimizer steps it is used for."""
    step = int(state.step) + 1
    state, collected = collect(run, state, journal, step=step)
    following = sample_ahead(run, state, step=step + 1) if run.config.rollout.lag else None
    with journal.timer("update"):
        state, metrics = optimize(run, state, collected.batch, collected.rollout)
        state = replace(state, step=state.step + 1, sampler_params=following)
        refuse_if_stuck(run, state)
    return state, {
        **metrics,
        **collected.metrics,
        "rollout/lag": float(bool(run.config.rollout.lag) and step > 1),
    }


def sample_ahead(run: Run, state: TrainState, *, step: int) -> Any:
    """Begins the rollout of a step to come with a copy of the parameters as they are, which it returns.

    The copy is part of the next state: a resumed run samples with it what a kill has cut short.
    """
    params = jax.tree.map(jnp.copy, state.params)
    if step <= run.config.train.steps:
        run.ahead[step] = begin(run, replace(state, sampler_params=params), step=step)
    return params


def save(run: Run, state: TrainState, *, accuracy: float | None = None) -> None:
    """A checkpoint, numbered by steps since the run began, the warm start's included."""
    before = 0 if state.warm else run.config.warm_start.steps
    run.checkpoints.save(before + int(state.step), state, accuracy=accuracy)


def position(state: TrainState) -> Position:
    """Where in the run a state stands."""
    return Position(WARM_START if state.warm else POLICY, int(state.step))


def is_multiple(step: int, every: int) -> bool:
    """Whether something done `every` steps (0 for never) is due."""
    return every > 0 and step % every == 0


def refuse_if_stuck(run: Run, state: TrainState) -> None:
    """Stops a run whose gradients have been non-finite too many optimizer steps in a row."""
    skipped = int(state.skipped)
    if skipped >= run.config.update.max_skipped:
        raise TrainingStopped(
            f"step {int(state.step)}: {skipped} optimizer steps in a row had non-finite gradients and were skipped "
            f"(update.max_skipped = {run.config.update.max_skipped}); lower optimizer.learning_rate, or use float32"
        )


@contextmanager
def stop_request() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGTERM or Ctrl-C has come, to any host: the step in hand is finished and saved first.

    All hosts must ask at the same points. A second Ctrl-C interrupts at once. Outside the main thread signals cannot be
    caught, and none is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: hosts.any_of(False)
        return
    received = []

    def handle(number, frame):
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: hosts.any_of(bool(received))
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
