"""The whole run at a tiny size: it is reproducible, and a resumed run is the uninterrupted one."""

import os
import signal
from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.config import (
    DriftFixConfig,
    EvaluationConfig,
    HistoryConfig,
    LossConfig,
    RewardConfig,
    RewardFunction,
    TrainConfig,
    UpdateConfig,
    WarmStartConfig,
)
from grpo_jax.training import collect, loop, optimize, setup
from grpo_jax.training.objective import objective_of
from grpo_jax.training.records import read_rows
from grpo_jax.types import InputError, TrainingStopped
from tests.tiny import tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder, rows and final state."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    state = loop.train(setup.prepare(tiny(folder)))
    return folder, measured(folder), jax.device_get(state)


def measured(folder):
    """The metric rows without what is of a process: what its clock measured, and the programs it compiled."""
    return [
        {k: v for k, v in row.items() if not k.startswith(("time/", "throughput/", "sampler/programs"))}
        for row in read_rows(folder / "metrics.jsonl")
    ]


def assert_equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


def test_a_run_leaves_its_config_metrics_samples_and_checkpoints(whole):
    folder, rows, state = whole
    assert [(row["stage"], row["step"]) for row in rows] == [
        ("warm_start", 1),
        ("warm_start", 2),
        *[("policy", step) for step in range(5)],
    ]
    assert (int(state.step), int(state.cursor), int(state.warm)) == (4, 16, 0)
    assert all(
        "eval/accuracy" in row for row in rows if row["stage"] == "policy" and row["step"] in (0, 2, 4)
    )
    assert max(row["sampler/log_prob_gap"] for row in rows if row["step"] and row["stage"] == "policy") < 1e-5
    assert any(row.get("grad/norm", 0) > 0 for row in rows if row["stage"] == "policy")
    assert (folder / "config.py").exists() and (folder / "samples.jsonl").exists()


def test_the_same_config_gives_the_same_numbers(whole, tmp_path):
    again = loop.train(setup.prepare(tiny(tmp_path / "run")))
    assert_equal(again, whole[2])
    assert measured(tmp_path / "run") == whole[1]


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole, tmp_path, stop_after):
    config = tiny(tmp_path / "run")
    # The first part must not know where it will be cut, or its last evaluation would be out of turn.
    part = loop.train(setup.prepare(replace(config, train=replace(config.train, steps=stop_after))))
    assert int(part.step) == stop_after
    state = loop.train(setup.prepare(replace(config, run=replace(config.run, resume=True))))
    assert_equal(state, whole[2])
    ours, theirs = measured(tmp_path / "run"), whole[1]
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        shared = {k: v for k, v in one.items() if not k.startswith("eval/")}
        assert shared == {k: v for k, v in other.items() if not k.startswith("eval/")}


def test_the_same_prompts_are_met_with_other_noise_at_every_step(tmp_path, monkeypatch):
    """Fault 0: a rollout key that does not know its step gives every epoch the same completions."""
    config = tiny(tmp_path / "run")
    config = replace(
        config,
        warm_start=replace(config.warm_start, steps=0),
        optimizer=replace(config.optimizer, learning_rate=1e-12),
        train=replace(config.train, steps=2),
    )
    run = setup.prepare(config)
    monkeypatch.setattr(collect, "next_examples", lambda run, state, count: list(run.train[:count]))
    rollouts, real = [], collect.judge

    def recorded(run, started, journal, *, step):
        rollouts.append(started.pending.result())
        return real(run, started, journal, step=step)

    monkeypatch.setattr(collect, "judge", recorded)
    loop.train(run)
    first, second = rollouts
    np.testing.assert_array_equal(first.prompt_ids, second.prompt_ids)
    assert (first.completion_ids != second.completion_ids).any(axis=1).sum() > 12


def test_a_run_killed_in_its_warm_start_goes_on_from_there(whole, tmp_path, monkeypatch):
    config = tiny(tmp_path / "run")
    real = collect.next_examples

    def killed_at_the_second_step(run, state, count):
        if state.warm and int(state.step) == 1:
            raise KeyboardInterrupt
        return real(run, state, count)

    run = setup.prepare(config)
    monkeypatch.setattr(loop, "next_examples", killed_at_the_second_step)
    with pytest.raises(KeyboardInterrupt):
        loop.train(run)
    run.checkpoints.close()
    monkeypatch.setattr(loop, "next_examples", real)
    state = loop.train(setup.prepare(replace(config, run=replace(config.run, resume=True))))
    assert_equal(state, whole[2])
    assert measured(tmp_path / "run") == whole[1]


def test_too_many_skipped_steps_stop_the_run(tmp_path):
    config = tiny(tmp_path / "run")
    config = replace(
        config,
        update=replace(config.update, max_skipped=2),
        optimizer=replace(config.optimizer, learning_rate=1e38),
    )
    with pytest.raises(TrainingStopped, match=r"step 2: .* non-finite gradients"):
        loop.train(setup.prepare(config))


def test_ha_dw_and_dfpo_live_in_the_state_and_survive_a_resume(tmp_path):
    loss = LossConfig(
        aggregation="token",
        surrogate="reinforce",
        ratio="sequence",
        history=HistoryConfig(update="soft"),
        drift_fix=DriftFixConfig(),
    )

    def config(name, **changes):
        base = tiny(tmp_path / name, loss=loss)
        return replace(
            base, update=replace(base.update, epochs=2), train=replace(base.train, steps=3), **changes
        )

    straight = loop.train(setup.prepare(config("straight")))
    part = config("resumed")
    loop.train(setup.prepare(replace(part, train=replace(part.train, steps=1))))
    resumed = loop.train(setup.prepare(replace(part, run=replace(part.run, resume=True))))
    assert int(straight.history.num_batches) == 3
    assert_equal(resumed, straight)
    last = measured(tmp_path / "straight")[-1]
    assert {"hadw/anchor_prior", "hadw/anchor_posterior", "hadw/eta", "shared_token/residue"} <= last.keys()
    assert last["ratio/max"] > 1  # four optimizer steps a rollout: the later ones are off-policy


def test_a_terminated_run_saves_the_step_in_hand_and_goes_on(whole, tmp_path, monkeypatch):
    config = tiny(tmp_path / "run", checkpoint=replace(tiny(tmp_path).checkpoint, every=0))
    run = setup.prepare(config)
    real = loop.policy_step

    def terminate_in_step_two(run, state, journal):
        if int(state.step) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(run, state, journal)

    monkeypatch.setattr(loop, "policy_step", terminate_in_step_two)
    assert int(loop.train(run).step) == 2
    monkeypatch.setattr(loop, "policy_step", real)
    state = loop.train(setup.prepare(replace(config, run=replace(config.run, resume=True))))
    assert_equal(state, whole[2])


def test_a_stop_in_the_warm_start_just_after_a_checkpoint(tmp_path):
    run = setup.prepare(tiny(tmp_path / "run"))  # which saves every step
    real = run.checkpoints.save

    def terminate(step, state, **options):
        real(step, state, **options)
        os.kill(os.getpid(), signal.SIGTERM)

    run.checkpoints.save = terminate
    state = loop.train(run)
    assert (int(state.warm), int(state.step)) == (1, 1)


def test_a_warm_start_has_no_more_sequences_in_a_pass_than_an_update(tmp_path, monkeypatch):
    """Else the memory that update.micro_batch saves would be asked for there."""
    seen, make = [], setup.make_log_probs

    def watched(*arguments, **options):
        log_probs = make(*arguments, **options)

        def of_rows(params, rows):
            seen.append(rows.group_ids.shape[0])
            return log_probs(params, rows)

        return of_rows

    monkeypatch.setattr(setup, "make_log_probs", watched)
    config = tiny(
        tmp_path / "run", warm_start=WarmStartConfig(steps=1, batch_size=6), train=TrainConfig(steps=0)
    )
    assert config.update.micro_batch == 4
    loop.train(setup.prepare(config))
    assert set(seen) == {3}


def test_a_warm_start_teaches_no_answer_that_is_too_long_to_be_given(tmp_path):
    config = tiny(tmp_path / "run")
    run = setup.prepare(replace(config, rollout=replace(config.rollout, max_completion_length=2)))
    with pytest.raises(InputError, match=r"max_completion_length: got 2, .* a reference answer of 3 tokens"):
        loop.train(run)


def test_all_right_is_the_best_that_the_weighted_rewards_can_be(tmp_path):
    objective = objective_of(tiny(tmp_path).loss, max_length=4)
    judge = setup.make_advantages(objective, num_groups=3, weights=(1.0, 0.2, 0.1, -0.5))
    rewards = np.array([1, 1, np.float32(1) + np.float32(0.2) + np.float32(0.1), 1.3, -0.5, -0.5], np.float32)
    _, _, metrics = judge(rewards, np.ones(6, bool), np.array([0, 0, 1, 1, 2, 2]), None)
    assert float(metrics["groups/all_right"]) == pytest.approx(1 / 3)
    assert float(metrics["groups/all_wrong"]) == pytest.approx(1 / 3)


def odd_unscored(problem, completion):
    """No verdict on half of the problems: whole groups are unscored."""
    return (
        None if problem.prompt_text[0] in "13579" else float(any(c in completion for c in "0123456789+-*/"))
    )


def test_a_mini_batch_without_a_token_does_not_dilute_the_metrics(tmp_path):
    config = tiny(
        tmp_path / "run",
        reward=RewardConfig((RewardFunction("tests.training.test_loop:odd_unscored"),), "unscored"),
        update=UpdateConfig(mini_batch=1, micro_batch=4),
        warm_start=WarmStartConfig(steps=0),
        train=TrainConfig(steps=1),
        evaluation=EvaluationConfig(every=0, problems=2, samples=1),
    )
    loop.train(setup.prepare(config))
    row = measured(tmp_path / "run")[-1]
    assert 0 < row["reward/unscored_count"] < 16
    assert row["ratio/mean"] == pytest.approx(1, abs=0.2) and row["entropy/mean"] > 4


def test_the_mean_over_optimizer_steps_counts_tokens_and_mixed_groups():
    counts = {"update/trained_tokens": 3.0, "update/mixed_groups": 2.0}
    nothing = {"update/trained_tokens": 1.0, "update/mixed_groups": 0.0}
    values = {"entropy/mean": 4.0, "coupling/log_ratio": 0.5, "grad/norm": 1.0, "ratio/max": 2.0}
    zeros = dict.fromkeys(values, 0.0)
    mean = optimize.mean_of_steps([counts | values, nothing | zeros])
    assert mean["entropy/mean"] == 3 and mean["coupling/log_ratio"] == 0.5
    assert mean["grad/norm"] == 0.5 and mean["ratio/max"] == 2


def test_a_folder_that_holds_a_run_is_left_alone(whole):
    run = setup.prepare(tiny(whole[0]))
    run.checkpoints.close()
    assert run.folder.name == "run-2"


def test_faults_46_and_49_evaluation_leaves_the_training_as_it_is(whole, tmp_path):
    """Between any two steps, and before the first: the same state and training metrics, and none under another name."""
    config = tiny(tmp_path / "run")
    more = loop.train(
        setup.prepare(replace(config, evaluation=replace(config.evaluation, every=1, samples=3)))
    )
    assert_equal(more, whole[2])
    policy = [row for row in measured(tmp_path / "run") if row["stage"] == "policy"]
    assert {name for name in policy[0] if not name.startswith("eval/")} == {"stage", "step"}
    for row, other in zip(policy, (r for r in whole[1] if r["stage"] == "policy"), strict=True):
        assert "eval/accuracy" in row
        trained, trained_there = (
            {k: v for k, v in r.items() if not k.startswith("eval/")} for r in (row, other)
        )
        assert trained == trained_there
