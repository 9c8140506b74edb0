"""From problems to a judged rollout: what the policy update is made of.

collect      sample and judge, in rounds if need be, and take advantages: a `Collected`
begin        a round of sampling, under way
play_back    a recorded rollout in its place
held         a state's policy as it is now, in the sampler, for evaluation
sample       completions of examples under that policy
answers      what makes them conversations, if there is an environment
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from grpo_jax import keys, tasks
from grpo_jax.environments import conversations
from grpo_jax.models import lora
from grpo_jax.rollout.background import finished
from grpo_jax.rollout.engine import Sampling
from grpo_jax.training import batches, draws, hosts, replaying, sharding
from grpo_jax.training.journal import Journal
from grpo_jax.training.judging import Judged, in_place, join, judge
from grpo_jax.training.metrics import rollout_metrics, turn_metrics
from grpo_jax.training.selection import Selection, everything, mixed_groups, select
from grpo_jax.training.setup import Example, Run, Started
from grpo_jax.types import Batch, Rollout, TrainState, joined, rows


@dataclass(frozen=True)
class Collected:
    """One rollout, judged."""

    rollout: Rollout
    batch: Batch
    """What the update reads, advantages and masks included."""
    metrics: Mapping[str, float]
    """rewards/, length/, advantages/, rollout/ and history metrics of the rollout, and `sampler/programs`: how many the
    sampler has compiled so far, in this process, evaluations included."""


def collect(run: Run, state: TrainState, journal: Journal, *, step: int) -> tuple[TrainState, Collected]:
    """Samples and judges problems from the state's cursor on, for `step`; moves the cursor and the history on."""
    options = run.config.rollout
    started = run.ahead.pop(step) if step in run.ahead else begin(run, state, step=step)
    judged = judge(run, started, journal, step=step)
    rounds, selection, counts = 1, everything(judged.rollout.group_ids), {}
    if options.dynamic_sampling:
        while goes_on(run, judged, step=step, rounds=rounds):
            more = begin(run, state, step=step, number=rounds, params=started.params)
            judged = join(
                [judged, numbered(judge(run, more, journal, step=step), rounds * options.batch_size)]
            )
            rounds += 1
        run.sampler.release()
        selection = select(mixed_of(judged), judged.rollout.group_ids, groups=options.batch_size)
        counts = selection_metrics(mixed_of(judged), rounds=rounds, groups=options.batch_size)
    if options.record:
        journal.rollout(judged.rollout, step=step)
    with journal.timer("reward"):
        advantages, history, group_metrics = weigh(run, state, judged, selection)
    if judged.scores.failures:  # reward.on_failure is "unscored": what was left out should not go unseen
        failures = judged.scores.failures
        journal.note(f"step {step}: {len(failures)} judgements failed, the first: {failures[0]}")
    rollout = replace(rows(judged.rollout, selection.rows), group_ids=selection.group_ids)
    batch = batches.policy_batch(
        rollout,
        advantages=advantages,
        scored=judged.scores.scored[selection.rows] & selection.counted,
        mask_truncated=run.objective.mask_truncated,
    )
    of_samples = np.zeros(len(judged.texts), np.float32)
    of_samples[selection.rows] = advantages
    sampled = write_down(run, judged, of_samples, journal, step=step)
    counts["sampler/programs"] = float(len(run.sampler.engine.programs))
    state = replace(state, history=history, cursor=state.cursor + rounds * options.batch_size)
    return state, Collected(rollout, batch, {**group_metrics, **sampled, **counts})


def goes_on(run: Run, judged: Judged, *, step: int, rounds: int) -> bool:
    """Whether a step takes another round after so many: for want of mixed groups, or since it did when it was recorded."""
    options = run.config.rollout
    if run.replay is not None:
        return rounds < replaying.rounds(run.replay, options, step=step)
    return mixed_of(judged).sum() < options.batch_size and rounds < options.max_rounds


def numbered(judged: Judged, first: int) -> Judged:
    """A round whose groups are numbered from `first` on, behind those of the rounds before."""
    rollout = replace(judged.rollout, group_ids=judged.rollout.group_ids + first)
    return replace(judged, rollout=rollout)


def begin(run: Run, state: TrainState, *, step: int, number: int = 0, params: Any | None = None) -> Started:
    """Begins to sample the problems of a round of `step`, with the parameters of the sampling policy.

    `params` are those of the step's first round, which the engine still has.
    """
    options = run.config.rollout
    key = keys.fold(state.key, "rollout", step)
    cursor = state.cursor + number * options.batch_size
    examples = next_examples(run, replace(state, cursor=cursor), options.batch_size)
    if run.replay is not None:
        return play_back(run, examples, step=step, number=number)
    if params is None:
        params = state.params if state.sampler_params is None else state.sampler_params
        params = sharding.own(lora.join(params, state.frozen), run.mesh)
    sampling = sampling_of(run, temperature=options.temperature, group_size=options.group_size)
    key = keys.fold(key, "round", number) if number else key
    return start(run, params, examples, sampling, key=key, keep=options.dynamic_sampling)


def start(
    run: Run, params: Any | None, examples: Sequence[Example], sampling: Sampling, *, key, keep: bool = False
) -> Started:
    """Begins to sample this host's share of the examples, each with the noise of its place among all of them.

    `params`, on this host's devices, are None where they are `held`. `keep` leaves them there for the rounds to come.
    """
    started = Started(examples, hosts.share(len(examples)))
    own = started.own_examples()
    pending = run.sampler.start(
        params,
        [example.prompt_ids for example in own],
        sampling=sampling,
        key=keys.on_host(key),
        keep=keep,
        **({"prompt_indices": started.places} if hosts.count() > 1 else {}),
        **answers(run, own, group_size=sampling.group_size),
    )
    return started._replace(pending=pending, params=params)


def play_back(run: Run, examples: Sequence[Example], *, step: int, number: int = 0) -> Started:
    """The recorded rollout of a round of `step`, as if it had just been sampled; each host has its share of it."""
    options, places = run.config.rollout, hosts.share(len(examples))
    with hosts.alike():
        rollout = replaying.replayed(
            run.replay,
            [example.prompt_ids for example in examples],
            options,
            step=step,
            number=number,
            vocab_size=run.policy.config.vocab_size,
        )
    own = [min(place, len(examples) - 1) for place in places]
    G = options.group_size
    share = rows(rollout, [place * G + sample for place in own for sample in range(G)])
    share = replace(share, group_ids=np.repeat(np.arange(len(own), dtype=np.int32), G))
    return Started(examples, places, finished(share, group_size=G))


def weigh(
    run: Run, state: TrainState, judged: Judged, selection: Selection
) -> tuple[np.ndarray, Any, Mapping[str, Any]]:
    """The advantages of the selected rows, the history after this rollout, and group metrics.

    HA-DW's y_t is the mean over all that was sampled, whatever was selected.
    """
    scores, batch_mean = judged.scores, None
    if run.config.rollout.dynamic_sampling and scores.scored.any():
        batch_mean = jnp.float32(scores.total[scores.scored].mean())
    advantages, history, metrics = run.advantages(
        jnp.asarray(scores.total[selection.rows]),
        jnp.asarray(scores.scored[selection.rows] & selection.counted),
        jnp.asarray(selection.group_ids),
        state.history,
        batch_mean,
    )
    return np.asarray(advantages), history, metrics


def mixed_of(judged: Judged) -> np.ndarray:
    """[groups] Which of the sampled groups are mixed."""
    return mixed_groups(judged.scores.total, judged.scores.scored, judged.rollout.group_ids)


def selection_metrics(mixed: np.ndarray, *, rounds: int, groups: int) -> dict[str, float]:
    """What dynamic sampling did; the group metrics are of all that was sampled, not of the chosen few."""
    kept = min(int(mixed.sum()), groups)
    return {
        "rollout/rounds": float(rounds),
        "rollout/sampled_groups": float(len(mixed)),
        "rollout/kept_groups": float(kept),
        "rollout/dropped_groups": float(len(mixed) - kept),
        "groups/mixed_fraction": float(mixed.mean()),
    }


def write_down(
    run: Run, judged: Judged, advantages: np.ndarray, journal: Journal, *, step: int
) -> dict[str, float]:
    """Records some samples, and returns the metrics of all of them."""
    rollout, scores = judged.rollout, judged.scores
    journal.samples(
        step=step,
        prompts=[problem.prompt_text for problem in judged.problems],
        completions=judged.texts,
        turns=[problem.metadata.get("turns") for problem in judged.problems],
        rewards=scores.total,
        advantages=advantages,
        stop_reasons=rollout.stop_reason,
        verdicts=scores.verdicts,
    )
    of_turns = {}
    if rollout.sampled is not None:
        of_turns = turn_metrics(sampled=rollout.sampled, lengths=rollout.completion_lengths)
    return of_turns | rollout_metrics(
        rewards=scores.rewards,
        names=[reward.name for reward in run.rewards],
        total=scores.total,
        scored=scores.scored,
        lengths=rollout.completion_lengths,
        stop_reasons=rollout.stop_reason,
        advantages=advantages,
    )


def next_examples(run: Run, state: TrainState, count: int) -> list[Example]:
    """The training problems at the state's cursor."""
    return tasks.batch(
        run.train, cursor=int(state.cursor), batch_size=count, seed=run.config.run.seed, mixture=run.mixture
    )


def sampling_of(run: Run, *, temperature: float, group_size: int) -> Sampling:
    """The sampler's settings, for training or evaluation."""
    return draws.sampling_of(
        run.config.rollout,
        temperature=temperature,
        group_size=group_size,
        tokenizer=run.tokenizer,
        environment=run.environment,
    )


def answers(run: Run, examples: Sequence[Example], *, group_size: int) -> dict[str, Any]:
    """The engine's option that lets the run's environment answer; none without an environment."""
    if run.environment is None:
        return {}
    problems = [example.problem for example in examples for _ in range(group_size)]
    return {"reply": conversations.reply_with(run.environment, problems, run.tokenizer)}


def held(run: Run, state: TrainState) -> AbstractContextManager[None]:
    """Loads the state's policy as it is now into the sampler, once for every `sample` inside."""
    return run.sampler.holding(sharding.own(lora.join(state.params, state.frozen), run.mesh))


def sample(run: Run, examples: Sequence[Example], sampling: Sampling, *, key) -> Rollout:
    """Completions of the examples' prompts under the policy that is `held`."""
    with hosts.alike():
        started = start(run, None, examples, sampling, key=key)
        rollout = in_place(started.pending.result(), started.places)
    return rows(joined(hosts.gather(rollout)), slice(len(examples) * sampling.group_size))
