"""The run: warm start, then sample, judge, update, evaluate, save, show.

    train          the running order
    warm_start     supervised steps on reference answers
    policy_step    one rollout and its optimizer steps
    evaluate       held-out accuracy

What these need was built by `setup.prepare`; what changes is the `TrainState`, taken and returned.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import evaluation, keys, tasks
from grpo_jax.models import lora
from grpo_jax.rewards import scoring
from grpo_jax.rollout.engine import Sampling
from grpo_jax.training import batches, sharding
from grpo_jax.training.journal import Journal
from grpo_jax.training.metrics import rollout_metrics
from grpo_jax.training.records import Position
from grpo_jax.training.setup import Example, Run, initial_state, policy_stage
from grpo_jax.types import TRUNCATED, Batch, Rollout, TrainingStopped, TrainState

POLICY, WARM_START = "policy", "warm_start"

OF_STEPS = ("grad/", "loss/", "update/")
OF_MIXED_GROUPS = ("coupling/", "learning_tax/", "length/", "shared_token/")
"""Prefixes of metrics of whole optimizer steps, and of means over their mixed groups; the others are means over tokens."""


def train(run: Run) -> TrainState:
    """Runs every stage that is still to do, and returns the final state."""
    state, resumed = initial_state(run), None
    if run.config.run.resume:
        state = run.checkpoints.restore(state)
        resumed = position(state)
    journal = Journal(run.folder, resumed=resumed, wandb_project=run.config.run.wandb_project)
    # However the run ends, what was handed to the checkpoint writer reaches the disk.
    with closing(run.checkpoints), journal, stop_request() as stopping:
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
    completions = {id(e): run.tokenizer.encode_completion(e.problem.answer) for e in run.train}
    size = max(map(len, completions.values()))
    with journal.stage(WARM_START, total=options.steps, start=int(state.step)) as log:
        while state.step < options.steps and not stopping():
            with journal.timer("update"):
                examples = next_examples(run, state, options.batch_size)
                batch = batches.supervised_batch(
                    [e.prompt_ids for e in examples],
                    [completions[id(e)] for e in examples],
                    prompt_size=run.config.rollout.max_prompt_length,
                    size=size,
                )
                batch = sharding.pad_rows(batch, run.mesh.size)
                state, metrics = run.warm_update(state, sharding.split_rows(batch, run.mesh))
                state = replace(state, step=state.step + 1, cursor=state.cursor + options.batch_size)
                refuse_if_stuck(run, state)
            log(int(state.step), metrics)
            if (
                int(state.step) % (run.config.checkpoint.every or options.steps) == 0
                and state.step < options.steps
            ):
                save(run, state)
    if state.step < options.steps:
        save(run, state)
        return state
    fresh = sharding.replicate(policy_stage(run, replace(state, frozen=None)), run.mesh)
    return replace(fresh, frozen=state.frozen)


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
        saved = int(state.step)
        while state.step < total and not stopping():
            state, metrics = policy_step(run, state, journal)
            step = int(state.step)
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
    config = run.config
    step = int(state.step) + 1
    with journal.timer("rollout"):
        examples = next_examples(run, state, config.rollout.batch_size)
        sampling = sampling_of(
            run, temperature=config.rollout.temperature, group_size=config.rollout.group_size
        )
        rollout = sample(run, state, examples, sampling, key=keys.fold(state.key, "rollout", step))
        texts = decode(run, rollout)
    with journal.timer("reward"):
        problems = [examples[group].problem for group in rollout.group_ids]
        scores = scoring.score(
            problems=problems,
            completions=texts,
            rewards=run.rewards,
            lengths=rollout.completion_lengths.tolist(),
            on_failure=config.reward.on_failure,
        )
        advantages, history, group_metrics = run.advantages(
            jnp.asarray(scores.total),
            jnp.asarray(scores.scored),
            jnp.asarray(rollout.group_ids),
            state.history,
        )
    if scores.failures:  # reward.on_failure is "unscored": what was left out should not go unseen
        journal.note(
            f"step {step}: {len(scores.failures)} judgements failed, the first: {scores.failures[0]}"
        )
    with journal.timer("update"):
        state = replace(state, history=history)
        batch = batches.policy_batch(
            rollout,
            advantages=np.asarray(advantages),
            scored=scores.scored,
            mask_truncated=run.objective.mask_truncated,
        )
        state, update_metrics = update(run, state, batch, rollout)
        state = replace(state, step=jnp.int32(step), cursor=state.cursor + config.rollout.batch_size)
        refuse_if_stuck(run, state)
    journal.samples(
        step=step,
        prompts=[problem.prompt_text for problem in problems],
        completions=texts,
        rewards=scores.total,
        advantages=np.asarray(advantages),
        stop_reasons=rollout.stop_reason,
    )
    sampled = rollout_metrics(
        rewards=scores.rewards,
        names=[reward.name for reward in run.rewards],
        total=scores.total,
        scored=scores.scored,
        lengths=rollout.completion_lengths,
        stop_reasons=rollout.stop_reason,
        advantages=np.asarray(advantages),
    )
    return state, {**update_metrics, **group_metrics, **sampled}


def update(
    run: Run, state: TrainState, batch: Batch, rollout: Rollout
) -> tuple[TrainState, Mapping[str, float]]:
    """The optimizer steps of one rollout. The old policy is that of now, whatever the number of steps."""
    options = run.config.update
    groups = options.mini_batch or run.config.rollout.batch_size
    if run.updates_per_rollout > 1:
        batch = replace(
            batch, old_log_probs=log_probs_under(run, lora.join(state.params, state.frozen), batch)
        )
    if state.ref_params is not None:
        # With LoRA the reference is the same base under the adapters it began with, so there is no second copy of it.
        batch = replace(
            batch, ref_log_probs=log_probs_under(run, lora.join(state.ref_params, state.frozen), batch)
        )
    collected = []
    for _ in range(options.epochs):
        for part in batches.mini_batches(batch, rollout_groups=rollout.group_ids, num_groups=groups):
            state, metrics = run.update(state, sharding.split_rows(part, run.mesh))
            collected.append(metrics)
    return state, mean_of_steps([jax.device_get(metrics) for metrics in collected])


def evaluate(run: Run, state: TrainState, journal: Journal) -> evaluation.Evaluation:
    """Held-out accuracy of the policy as it is; draws nothing from the training stream of keys."""
    options = run.config.evaluation
    examples = run.held_out[: options.problems or None]
    names = [reward.name for reward in run.config.reward.functions]
    success = run.rewards[names.index(options.success) if options.success else 0]
    sampling = sampling_of(run, temperature=options.temperature, group_size=options.samples)
    size = run.config.rollout.batch_size
    with journal.timer("evaluate"):
        texts, lengths, truncated = [], [], []
        for first in range(0, len(examples), size):
            key = keys.fold(state.key, "evaluation", first)
            rollout = sample(run, state, examples[first : first + size], sampling, key=key)
            texts += decode(run, rollout)
            lengths += rollout.completion_lengths.tolist()
            truncated += (rollout.stop_reason == TRUNCATED).tolist()
        scores = scoring.score(
            problems=[e.problem for e in examples for _ in range(options.samples)],
            completions=texts,
            rewards=[success],
            lengths=lengths,
            on_failure=run.config.reward.on_failure,
        )
        table = (len(examples), options.samples)
        result = evaluation.summarize(
            [e.problem for e in examples],
            texts=np.reshape(np.array(texts, object), table),
            lengths=np.reshape(lengths, table),
            truncated=np.reshape(truncated, table),
            scores=scores.rewards.reshape(table),
        )
    journal.evaluation(result, step=int(state.step))
    return result


def next_examples(run: Run, state: TrainState, count: int) -> list[Example]:
    """The training problems at the state's cursor."""
    return tasks.batch(
        run.train, cursor=int(state.cursor), batch_size=count, seed=run.config.run.seed, mixture=run.mixture
    )


def sampling_of(run: Run, *, temperature: float, group_size: int) -> Sampling:
    """The sampler's settings, for training or evaluation."""
    options = run.config.rollout
    greedy = temperature == 0  # takes the likeliest token, and nothing is left to truncate
    return Sampling(
        temperature=temperature,
        top_k=0 if greedy else options.top_k,
        top_p=1.0 if greedy else options.top_p,
        max_tokens=options.max_completion_length,
        group_size=group_size,
        stop_ids=run.tokenizer.stop_ids,
    )


def sample(run: Run, state: TrainState, examples: Sequence[Example], sampling: Sampling, *, key) -> Rollout:
    """Completions of the examples' prompts under the state's policy."""
    run.engine.load(lora.join(state.params, state.frozen))
    return run.engine.generate([e.prompt_ids for e in examples], sampling=sampling, key=key)


def decode(run: Run, rollout: Rollout) -> list[str]:
    """The text of every completion."""
    return [
        run.tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(rollout.completion_ids, rollout.completion_lengths, strict=True)
    ]


def log_probs_under(run: Run, params, batch: Batch) -> np.ndarray:
    """Completion log-probabilities [N, T] of the whole batch, gradient-free."""
    return np.asarray(run.log_prob_pass(params, sharding.split_rows(batch, run.mesh)))


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


def mean_of_steps(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One value per metric over the optimizer steps of a rollout: the largest of a maximum, else the mean.

    A step counts by what it took its mean over, tokens that train or mixed groups: one that had none says nothing.
    """

    def mean(name: str) -> float:
        values = [m[name] for m in metrics]
        if name.endswith("/max"):
            return np.max(values)
        if name.startswith(OF_STEPS):
            return np.mean(values)
        over = "update/mixed_groups" if name.startswith(OF_MIXED_GROUPS) else "update/trained_tokens"
        counts = [m[over] for m in metrics]
        return np.average(values, weights=counts) if np.sum(counts) else np.mean(values)

    return {name: float(mean(name)) for name in metrics[0]}


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
    """A function that says whether SIGTERM or Ctrl-C has come: the step in hand is finished and saved first.

    A second Ctrl-C interrupts at once. Outside the main thread signals cannot be caught, and none is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received = []

    def handle(number, frame):
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
