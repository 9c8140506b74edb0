"""Two processes are one run: the same numbers as in one process, one that writes, and no silence when one is lost."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from grpo_jax import experiment
from grpo_jax.config import (
    DistributedConfig,
    EvaluationConfig,
    HistoryConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    UpdateConfig,
)
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import hosts, loop, setup
from tests.tiny import tiny
from tests.training import host_loop, meshes
from tests.training.processes import free_address, start
from tests.training.test_loop import measured


def config_of(folder: Path):
    """Three prompts and an evaluation of three, which two hosts cannot share equally; HA-DW, whose state must agree."""
    base = tiny(folder)
    return replace(
        base,
        rollout=replace(base.rollout, batch_size=3),
        update=UpdateConfig(micro_batch=8),
        loss=replace(base.loss, history=HistoryConfig(update="soft")),
        optimizer=OptimizerConfig(learning_rate=1e-2, eps=1e-3),  # Adam divides noise by noise otherwise
        warm_start=replace(base.warm_start, steps=0),
        train=TrainConfig(steps=2),
        evaluation=EvaluationConfig(every=2, problems=3, samples=4),  # sampled by the same programs
        mesh=MeshConfig(),
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The run folder and the gradients of two processes with four devices each."""
    folder = tmp_path_factory.mktemp("two")
    file, out = folder / "experiment.py", folder / "gradients.npz"
    file.write_text(experiment.to_source(config_of(folder / "run")))
    processes = start("host_run", str(file), str(out), devices=4, coordinator=free_address())
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return folder / "run", np.load(out), outputs


def test_a_run_on_two_hosts_is_the_run_on_one(two, tmp_path):
    """Tokens are the same, because noise belongs to a completion and not to where it is sampled."""
    loop.train(setup.prepare(replace(config_of(tmp_path / "run"), mesh=MeshConfig(data=1))))
    one, both = measured(tmp_path / "run"), measured(two[0])
    assert [row["step"] for row in one] == [row["step"] for row in both] == [0, 1, 2]
    assert one[-1]["grad/norm"] > 0
    for a, b in zip(one, both, strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"stage", "sampler/log_prob_gap"}:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-3, atol=1e-5, err_msg=name)
    texts = [(path / "samples.jsonl").read_text() for path in (tmp_path / "run", two[0])]
    assert texts[0].count("\n") == texts[1].count("\n")


def test_the_first_host_writes_and_speaks(two):
    folder, _, outputs = two
    assert "run folder:" in outputs[0] and "GRPO 2/2" in outputs[0]
    assert "run folder:" not in outputs[1] and "GRPO" not in outputs[1]
    assert experiment.load(folder / "config.py").distributed == DistributedConfig()
    assert not list(folder.parent.glob("run-*"))


def test_a_checkpoint_of_two_hosts_is_read_by_one(two, tmp_path):
    config = replace(config_of(two[0]), mesh=MeshConfig())
    run = setup.prepare(replace(config, run=replace(config.run, resume=True)))
    state = run.checkpoints.restore(setup.initial_state(run))
    run.checkpoints.close()
    assert int(state.step) == 2 and int(state.history.num_batches) == 2


def test_gradients_on_two_hosts_are_those_of_one_device(two):
    policy = nnx.split(Decoder(meshes.MODEL, rngs=nnx.Rngs(0)))
    one = meshes.one_step(policy, meshes.make_batch(), shape=(1, 1, 1), micro_batches=1)
    leaves = {name: two[1][name] for name in sorted(two[1]) if name.startswith("leaf_")}
    metrics = {name: float(two[1][name]) for name in one[1]}
    meshes.assert_same(one, (list(leaves.values()), metrics))


MESSAGES = {
    "fails": "host 1 of 2: ValueError: reward.functions: no such file on this host",
    "dies": "of 2 hosts, 1 did not come within distributed.timeout_seconds = 8",
    "falls behind": "of 2 hosts, 1 did not come within distributed.timeout_seconds = 8",
    "begins slowly": "of 2 hosts, 1 did not come within distributed.timeout_seconds = 8",
    "stops in a program": "another task died",
}


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """For every way to disturb the second host, what the first one said and how it ended. All at once: they wait."""
    folders = {mode: str(tmp_path_factory.mktemp("disturbed") / "run") for mode in MESSAGES}
    pairs = {
        mode: start("host_loop", mode, folders[mode], devices=1, coordinator=free_address())
        for mode in MESSAGES
    }
    try:
        said = {mode: first.communicate(timeout=300)[0] for mode, (first, _) in pairs.items()}
        return {mode: (said[mode], first.returncode) for mode, (first, _) in pairs.items()}
    finally:
        for pair in pairs.values():
            for process in pair:
                process.kill()
                process.wait()


@pytest.mark.parametrize("mode", MESSAGES)
def test_a_lost_host_ends_the_other_with_a_message(disturbed, mode):
    """Killed, asleep, late before the run's first program, stopped while one runs on both, or failing alone.

    The other would wait for ever.
    """
    said, code = disturbed[mode]
    assert code != 0 and MESSAGES[mode] in said


def test_a_first_host_that_is_gone_is_missed_by_name(monkeypatch):
    """It holds what the others meet at, so already the word they leave there fails."""

    class Gone:
        def key_value_set(self, *_):
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: Connection reset by peer")

        key_value_dir_get = key_value_set

    def abandon(message):
        raise SystemExit(message)

    monkeypatch.setattr(hosts, "count", lambda: 2)
    monkeypatch.setattr(hosts, "index", lambda: 1)
    monkeypatch.setattr(hosts, "abandon", abandon)
    monkeypatch.setattr(hosts.distributed.global_state, "client", Gone())
    with pytest.raises(SystemExit, match="the first host, which the others meet at, is gone"):
        hosts.meet()


def test_shares_are_equal_and_cover_everything(monkeypatch):
    monkeypatch.setattr(hosts, "count", lambda: 3)
    for total in (1, 3, 7):
        shares = []
        for host in range(3):
            monkeypatch.setattr(hosts, "index", lambda host=host: host)
            shares.append(hosts.share(total))
        assert len({len(share) for share in shares}) == 1
        assert [place for share in shares for place in share][:total] == list(range(total))


def test_without_other_hosts_nothing_is_asked(tmp_path):
    with pytest.raises(ValueError, match=r"distributed\.coordinator HOST:PORT"):
        hosts.connect(DistributedConfig(enabled=True))
    assert hosts.gather(3) == [3] and hosts.meet("word") == ["word"] and hosts.is_first()
    with pytest.raises(KeyError), hosts.alike(), hosts.leaving_together():
        raise KeyError
    assert host_loop.TIMEOUT == 8
