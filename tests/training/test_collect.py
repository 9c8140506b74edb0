"""Dynamic sampling in a run: what trains, what HA-DW hears of, where the cursor goes; and judging in waves."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from grpo_jax.config import (
    EvaluationConfig,
    HistoryConfig,
    LossConfig,
    RewardConfig,
    RewardFunction,
    TrainConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.training import collect, judging, loop, setup
from grpo_jax.training.journal import Journal
from grpo_jax.training.setup import Started
from tests.tiny import tiny, vowels
from tests.training.test_loop import assert_equal, measured


def odd_only(problem, completion):
    """Mixed rewards for sums of an odd first number; the others are always wrong."""
    return vowels(problem, completion) if problem.prompt_text[0] in "13579" else 0.0


def never(problem, completion):
    return 0.0


def config(folder, reward="odd_only", **rollout):
    base = tiny(
        folder,
        reward=RewardConfig((RewardFunction(f"tests.training.test_collect:{reward}"),)),
        loss=LossConfig(history=HistoryConfig()),
        warm_start=WarmStartConfig(steps=0),
        evaluation=EvaluationConfig(every=0, problems=2, samples=1),
        train=TrainConfig(steps=2),
        update=UpdateConfig(),
    )
    return replace(base, rollout=replace(base.rollout, dynamic_sampling=True, **rollout))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = setup.prepare(config(tmp_path_factory.mktemp("dynamic") / "run"))
    yield run
    run.checkpoints.close()
    run.sampler.close()


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path, resumed=None) as journal:
        yield journal


@pytest.fixture
def judged(monkeypatch):
    """Every round as it was judged."""
    rounds, real = [], collect.judge
    monkeypatch.setattr(collect, "judge", lambda *a, **k: rounds.append(real(*a, **k)) or rounds[-1])
    return rounds


def test_prompts_are_drawn_until_enough_groups_are_mixed(run, journal, judged):
    state, collected = collect.collect(run, setup.initial_state(run), journal, step=1)
    rounds = len(judged)
    assert 1 < rounds < 10 and int(state.cursor) == 4 * rounds
    rewards = np.concatenate([part.scores.total for part in judged]).reshape(-1, 4)
    mixed = rewards.max(1) > rewards.min(1)
    assert mixed.sum() >= 4 > mixed[:-4].sum()
    kept = rewards[np.flatnonzero(mixed)[:4]]
    expected = (kept - kept.mean(1, keepdims=True)) / (kept.std(1, keepdims=True) + 1e-6)
    phi = collected.batch.advantages.reshape(4, 4) / expected  # HA-DW's factor is positive
    assert (phi > 0).all()
    assert collected.metrics["rollout/rounds"] == rounds
    assert collected.metrics["rollout/sampled_groups"] == 4 * rounds
    assert collected.metrics["rollout/kept_groups"] == 4
    assert collected.metrics["rollout/dropped_groups"] == 4 * rounds - 4
    assert collected.metrics["groups/mixed_fraction"] == pytest.approx(mixed.mean())
    assert collected.metrics["reward/mean"] == pytest.approx(rewards.mean())
    prompts = [part.problems[i * 4].prompt_text for part in judged for i in range(4)]
    trained = {
        run.tokenizer.decode(ids[:n])
        for ids, n in zip(collected.batch.prompt_ids, collected.batch.prompt_lengths, strict=True)
    }
    assert trained == {prompts[i] for i in np.flatnonzero(mixed)[:4]}


def test_all_rounds_of_a_step_are_sampled_with_parameters_loaded_once(run, journal, monkeypatch):
    engine, loaded = run.sampler.engine, []
    real = engine.load
    monkeypatch.setattr(engine, "load", lambda params: (loaded.append(params), real(params)))
    _, collected = collect.collect(run, setup.initial_state(run), journal, step=1)
    assert collected.metrics["rollout/rounds"] > 1
    assert len(loaded) == 2 and loaded[0] is not None and loaded[1] is None  # and let go of before the update


@pytest.mark.parametrize("evaluated", [False, True])
def test_with_lag_too_unless_other_parameters_were_loaded_meanwhile(run, journal, monkeypatch, evaluated):
    """The first round was begun a step ago; an evaluation takes the sampler before the second."""
    lagging = replace(run, config=replace(run.config, rollout=replace(run.config.rollout, lag=1)), ahead={})
    state = setup.initial_state(lagging)
    engine, loaded = run.sampler.engine, []
    real = engine.load
    expected = collect.collect(run, replace(state, sampler_params=None), journal, step=1)[1]
    monkeypatch.setattr(engine, "load", lambda params: (loaded.append(params), real(params)))
    loop.sample_ahead(lagging, state, step=1)
    if evaluated:
        with collect.held(run, replace(state, params=jax.tree.map(lambda x: 2 * x, state.params))):
            pass
    _, collected = collect.collect(lagging, state, journal, step=1)
    assert sum(params is not None for params in loaded) == (3 if evaluated else 1) and loaded[-1] is None
    assert_equal(collected.batch, expected.batch)  # whatever was loaded in between


def test_groups_that_do_not_train_still_reach_ha_dws_batch_mean(run, journal, judged):
    state, _ = collect.collect(run, setup.initial_state(run), journal, step=1)
    everything = np.concatenate([part.scores.total for part in judged])
    assert float(state.history.batch_means[-1]) == pytest.approx(everything.mean(), abs=1e-6)
    assert int(state.history.num_batches) == 1


def test_every_round_has_noise_of_its_own(run, journal, judged, monkeypatch):
    monkeypatch.setattr(collect, "next_examples", lambda run, state, count: list(run.train[:count]))
    monkeypatch.setattr(collect, "mixed_of", lambda judged: np.zeros(len(judged.texts) // 4, bool))
    limited = replace(run, config=config(run.folder, max_rounds=2))
    collect.collect(limited, setup.initial_state(run), journal, step=1)
    first, second = judged
    np.testing.assert_array_equal(first.rollout.prompt_ids, second.rollout.prompt_ids)
    assert (first.rollout.completion_ids != second.rollout.completion_ids).any(axis=1).sum() > 12


def test_the_rounds_are_capped_and_a_batch_without_a_mixed_group_trains_nothing(tmp_path):
    run = setup.prepare(config(tmp_path / "run", reward="never", max_rounds=2))
    before = jax.device_get(setup.initial_state(run).params)
    run = replace(run, config=replace(run.config, train=replace(run.config.train, steps=1)))
    state = loop.train(run)
    assert int(state.cursor) == 8
    assert_equal(before, jax.device_get(state.params))
    row = measured(run.folder)[-1]
    assert (row["rollout/rounds"], row["rollout/kept_groups"], row["update/trained_tokens"]) == (2, 0, 0)
    assert float(state.history.batch_means[-1]) == 0 and int(state.history.num_batches) == 1


def test_a_resumed_run_draws_on_where_the_rounds_left_the_cursor(tmp_path):
    whole = loop.train(setup.prepare(config(tmp_path / "whole")))
    assert int(whole.cursor) > 2 * 4
    part = config(tmp_path / "part")
    loop.train(setup.prepare(replace(part, train=replace(part.train, steps=1))))
    resumed = loop.train(setup.prepare(replace(part, run=replace(part.run, resume=True))))
    assert_equal(resumed, whole)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of three steps that records: its folder, its rows, its state."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    run = setup.prepare(replace(config(folder, record=True), train=TrainConfig(steps=3)))
    state = jax.device_get(loop.train(run))
    return run.folder, measured(run.folder), state


def replaying(recorded, folder, **changes):
    base = config(folder, replay=str(recorded[0] / "rollouts"), **changes)
    return replace(base, train=TrainConfig(steps=3))


def test_rounds_are_played_back_as_they_were_recorded(recorded, tmp_path):
    """All of a step, in order; the data go on where the rounds left them; and so after a resume."""
    _, rows, state = recorded
    assert max(row["rollout/rounds"] for row in rows[1:]) > 1
    again = loop.train(setup.prepare(replaying(recorded, tmp_path / "whole")))
    assert_equal(again, state)
    assert measured(tmp_path / "whole") == rows
    part = replaying(recorded, tmp_path / "part")
    loop.train(setup.prepare(replace(part, train=TrainConfig(steps=1))))
    resumed = loop.train(setup.prepare(replace(part, run=replace(part.run, resume=True))))
    assert_equal(resumed, state)
    assert measured(tmp_path / "part")[-1] == rows[-1]


def test_other_rewards_judge_the_rounds_that_were_recorded(recorded, tmp_path):
    """Whether they want more rounds or fewer: the next step's prompts are recorded for where these end."""
    _, rows, state = recorded
    again = loop.train(setup.prepare(replaying(recorded, tmp_path / "run", reward="never")))
    assert int(again.cursor) == int(state.cursor)
    ours = measured(tmp_path / "run")
    assert [row["rollout/rounds"] for row in ours[1:]] == [row["rollout/rounds"] for row in rows[1:]]
    assert all(row["rollout/kept_groups"] == 0 for row in ours[1:])


def test_rounds_that_a_config_does_not_take_are_errors_before_the_run(recorded, tmp_path):
    at_once = replaying(recorded, tmp_path / "run")
    at_once = replace(at_once, rollout=replace(at_once.rollout, dynamic_sampling=False))
    with pytest.raises(
        ValueError, match=r"expected 16: .*; rollout\.dynamic_sampling True plays back \d rounds"
    ):
        setup.prepare(at_once)
    with pytest.raises(
        ValueError, match=r"rollout\.max_rounds: got 1, but step-00000\d of .* has \d rounds of"
    ):
        setup.prepare(replaying(recorded, tmp_path / "run", max_rounds=1))
    with pytest.raises(ValueError, match=r"rollout\.replay: step-000001 of .* expected rounds of 20: "):
        setup.prepare(replaying(recorded, tmp_path / "run", group_size=5))


def test_what_is_judged_together_does_not_depend_on_the_clock(run, journal, monkeypatch):
    """Groups that finish in any order are judged in the same waves."""
    examples = list(run.train[:20])
    whole = collect.begin(run, setup.initial_state(run), step=1).pending.result()
    calls, real = [], judging.scoring.score

    def recorded(**arguments):
        calls.append(len(arguments["completions"]))
        return real(**arguments)

    monkeypatch.setattr(judging.scoring, "score", recorded)
    everything = []
    for order in (range(4), [2, 3, 0, 1], [3, 2, 1, 0]):
        finished = [(i, jax.tree.map(lambda x, i=i: x[4 * i : 4 * i + 4], whole)) for i in order]
        pending = SimpleNamespace(groups=finished.__iter__, result=lambda: whole)
        started = Started(examples[:4], range(4), pending)
        everything.append(judging.judge(run, started, journal, step=1))
    assert calls == [4] * 12
    for other in everything[1:]:
        assert other.texts == everything[0].texts and other.problems == everything[0].problems
        np.testing.assert_array_equal(other.scores.rewards, everything[0].scores.rewards)
    assert everything[0].rollout is whole
