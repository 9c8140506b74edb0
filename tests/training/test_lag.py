"""rollout.lag = 1: rollouts of the policy one step ago, with its log-probabilities, and resumed to the bit."""

import os
import signal
from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax import validation
from grpo_jax.config import EvaluationConfig, TrainConfig, WarmStartConfig
from grpo_jax.models import lora
from grpo_jax.training import collect, loop, setup
from tests.tiny import tiny
from tests.training.test_loop import assert_equal, measured


def config(folder, *, lag=1, **changes):
    base = tiny(folder, warm_start=WarmStartConfig(steps=0), train=TrainConfig(steps=3), **changes)
    base = replace(base, evaluation=EvaluationConfig(every=2, problems=2, samples=1))
    # One optimizer step a rollout: without lag its ratios would be 1 whatever happened.
    update = replace(base.update, mini_batch=0)
    return replace(base, update=update, rollout=replace(base.rollout, lag=lag))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run; its rows, its state, and the parameters and rollout of every step."""
    patch = pytest.MonkeyPatch()
    params, rollouts, real = [], [], loop.collect

    def recorded(run, state, journal, *, step):
        params.append(jax.device_get(state.params))
        state, collected = real(run, state, journal, step=step)
        rollouts.append(collected.rollout)
        return state, collected

    patch.setattr(loop, "collect", recorded)
    folder = tmp_path_factory.mktemp("lag") / "run"
    state = loop.train(setup.prepare(config(folder)))
    patch.undo()
    return measured(folder), jax.device_get(state), params, rollouts


def test_every_rollout_is_of_the_policy_exactly_one_step_ago(whole, tmp_path):
    """Sampled again, with the parameters each step began with: step n's rollout is that of step n − 1's."""
    _, _, params, rollouts = whole
    run = setup.prepare(config(tmp_path / "run", lag=0))
    state = setup.initial_state(run)
    for step, rollout in enumerate(rollouts, start=1):
        sampled_with = params[max(step - 2, 0)]
        state = replace(state, params=jax.device_put(sampled_with), cursor=np.int32(4 * (step - 1)))
        again = collect.begin(run, state, step=step).pending.result()
        jax.tree.map(np.testing.assert_array_equal, again, rollout)
    run.sampler.close(), run.checkpoints.close()


def test_ratios_are_those_to_the_policy_that_sampled(whole):
    rows = [row for row in whole[0] if row["stage"] == "policy" and row["step"] > 0]
    assert [row["rollout/lag"] for row in rows] == [0, 1, 1]
    assert rows[0]["kl/old"] == 0 and rows[0]["ratio/max"] == pytest.approx(1, abs=1e-6)
    assert all(row["kl/old"] > 1e-6 and row["ratio/max"] > 1.001 for row in rows[1:])
    assert all(row["sampler/log_prob_gap"] < 1e-5 for row in rows)  # old log-probs are the sampling policy's


def test_a_resumed_run_is_the_uninterrupted_one(whole, tmp_path, monkeypatch):
    """Stopped by a signal, with a rollout under way that nobody will use."""
    run, real = setup.prepare(config(tmp_path / "run")), loop.policy_step

    def terminated(run, state, journal):
        if int(state.step) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(run, state, journal)

    monkeypatch.setattr(loop, "policy_step", terminated)
    assert int(loop.train(run).step) == 2
    monkeypatch.undo()
    again = config(tmp_path / "run")
    state = loop.train(setup.prepare(replace(again, run=replace(again.run, resume=True))))
    assert_equal(state, whole[1])
    assert measured(tmp_path / "run") == whole[0]


def test_only_lagging_runs_carry_the_parameters_of_the_sampler(whole, tmp_path):
    assert_equal(lora.join(whole[1].sampler_params, None), whole[2][-1])
    run = setup.prepare(config(tmp_path / "run", lag=0))
    assert setup.initial_state(run).sampler_params is None
    run.sampler.close(), run.checkpoints.close()


def test_on_a_mesh_the_sampler_needs_devices_of_its_own(whole, tmp_path):
    """Trained on two devices in fsdp, sampled on two others: what one device makes of it, but for rounding."""
    wrong = config(tmp_path / "run")
    wrong = replace(wrong, mesh=replace(wrong.mesh, data=1, fsdp=2))
    with pytest.raises(ValueError, match=r"rollout\.lag: got 1, expected 0 on a mesh of 2 devices"):
        validation.validate(wrong, devices=8)
    right = replace(wrong, rollout=replace(wrong.rollout, devices=2), train=TrainConfig(steps=2))
    run = setup.prepare(right)
    loop.train(run)
    assert run.sampler.engine._mesh.shape == {"data": 2, "fsdp": 1, "tensor": 1}
    assert set(run.sampler.engine._mesh.devices.flat) == set(jax.devices()[-2:])
    rows = [row for row in measured(run.folder) if row["step"] > 0]
    assert [row["rollout/lag"] for row in rows] == [0, 1]
    assert all(row["sampler/log_prob_gap"] < 1e-5 for row in rows) and rows[1]["kl/old"] > 1e-6
    for ours, theirs in zip(rows, [row for row in whole[0] if row["step"] in (1, 2)], strict=True):
        assert ours["reward/mean"] == theirs["reward/mean"] and ours["length/total"] == theirs["length/total"]
        assert ours["grad/norm"] == pytest.approx(theirs["grad/norm"], rel=1e-4)
