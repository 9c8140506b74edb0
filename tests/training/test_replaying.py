"""A run that records its rollouts, and runs that train on them without sampling."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo_jax import experiment
from grpo_jax.cli import main
from grpo_jax.rollout import NativeEngine
from grpo_jax.training import collect, loop, replaying, setup
from tests.tiny import tiny
from tests.training import test_environment
from tests.training.test_loop import assert_equal, measured


def with_rollout(config, **changes):
    return replace(config, rollout=replace(config.rollout, **changes))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run that records: its folder, its rows and its final state."""
    run = setup.prepare(with_rollout(tiny(tmp_path_factory.mktemp("recorded") / "run"), record=True))
    state = loop.train(run)
    return run.folder, measured(run.folder), jax.device_get(state)


@pytest.fixture
def calls(monkeypatch):
    """Prompts of every call of the sampler."""
    found, real = [], NativeEngine.generate
    monkeypatch.setattr(
        NativeEngine, "generate", lambda self, ids, **k: found.append(len(ids)) or real(self, ids, **k)
    )
    return found


def files(folder):
    return sorted(path.name for path in (folder / "rollouts").iterdir())


STEPS = [f"step-{step:06d}.parquet" for step in (1, 2, 3, 4)]


def test_every_step_is_a_file_of_its_completions(recorded):
    folder, rows, _ = recorded
    assert files(folder) == STEPS
    for name, row in zip(STEPS, rows[-4:], strict=True):
        table = pq.read_table(folder / "rollouts" / name)
        assert table.num_rows == 16 and set(table["call"].to_pylist()) == {name.removesuffix(".parquet")}
        assert sum(map(len, table["completion_ids"].to_pylist())) == row["length/total"]


def test_a_run_that_plays_them_back_is_the_run_that_sampled_them(recorded, tmp_path, calls):
    folder, rows, state = recorded
    again = loop.train(setup.prepare(with_rollout(tiny(tmp_path / "run"), replay=str(folder / "rollouts"))))
    assert_equal(again, state)
    assert measured(tmp_path / "run") == rows
    assert calls == [4, 4] * 3  # three evaluations of eight problems, in two parts, and no rollout


def test_another_update_trains_on_the_same_completions(recorded, tmp_path, capsys):
    """Offline: by step 2 the policy is another than the one that sampled, which the run says."""
    folder, rows, _ = recorded
    config = with_rollout(tiny(tmp_path / "run"), replay=str(folder / "rollouts"))
    loop.train(setup.prepare(replace(config, optimizer=replace(config.optimizer, learning_rate=0.1))))
    ours = measured(tmp_path / "run")[-4:]
    for name in ("reward/mean", "length/total", "rewards/exact_match/mean"):
        assert [row[name] for row in ours] == [row[name] for row in rows[-4:]]
    gaps = [row["sampler/log_prob_gap"] for row in ours]
    assert gaps[0] < 1e-5 and min(gaps[1:]) > 0.02
    assert "step 2: sampler and trainer disagree" in (said := capsys.readouterr().out.replace("\n", " "))
    assert "rollout.replay: the rollouts are of another policy" in " ".join(said.split())


def test_one_file_of_all_steps_will_do(recorded, tmp_path):
    folder, _, _ = recorded
    whole = pa.concat_tables(pq.read_table(folder / "rollouts" / name) for name in STEPS)
    pq.write_table(whole, tmp_path / "all.parquet")
    config = with_rollout(tiny(tmp_path / "run"), replay=str(tmp_path / "all.parquet"))
    one, many = (
        replaying.open_replay(with_rollout(config, replay=path))
        for path in (config.rollout.replay, str(folder / "rollouts"))
    )
    prompts = pq.read_table(folder / "rollouts" / STEPS[2])["prompt_ids"].to_pylist()[::4]
    assert_equal(
        *(
            replaying.replayed(replay, prompts, config.rollout, step=3, vocab_size=400)
            for replay in (one, many)
        )
    )


def test_a_step_that_is_made_again_after_a_kill_is_there_once(recorded, tmp_path, monkeypatch):
    """Killed in the update of step 3, whose rollout was written, with a half-written file beside it."""
    config = with_rollout(tiny(tmp_path / "run"), record=True)
    run, real = setup.prepare(config), loop.optimize

    def killed(run, state, batch, rollout):
        if int(state.step) == 2:
            raise KeyboardInterrupt
        return real(run, state, batch, rollout)

    monkeypatch.setattr(loop, "optimize", killed)
    with pytest.raises(KeyboardInterrupt):
        loop.train(run)
    monkeypatch.undo()
    assert files(run.folder) == STEPS[:3]
    third = run.folder / "rollouts" / STEPS[2]
    shutil.move(third, third.with_suffix(".tmp"))
    pq.write_table(pq.read_table(run.folder / "rollouts" / STEPS[1]), third)  # not what step 3 will write
    loop.train(setup.prepare(replace(config, run=replace(config.run, resume=True))))
    assert files(run.folder) == STEPS
    for name in STEPS:
        ours, theirs = (pq.read_table(f / "rollouts" / name) for f in (run.folder, recorded[0]))
        assert ours.equals(theirs)


def test_conversations_are_played_back_with_what_the_environment_said(tmp_path, calls):
    config = test_environment.config(tmp_path / "run")
    run = setup.prepare(with_rollout(config, record=True))
    state = jax.device_get(loop.train(run))
    sampled, path = len(calls), str(run.folder / "rollouts")
    replay = with_rollout(test_environment.config(tmp_path / "again"), replay=path)
    assert_equal(loop.train(setup.prepare(replay)), state)
    assert measured(tmp_path / "again") == measured(run.folder)
    assert len(calls) < 2 * sampled
    alone = with_rollout(replay, environment="", max_prompt_length=8)
    with pytest.raises(ValueError, match=r"rollout\.environment: got '', but .* was recorded with one"):
        setup.prepare(alone)


def test_each_host_has_its_share(recorded, tmp_path, monkeypatch):
    """Of four prompts the second of two hosts has the last two; of three hosts the last has one, twice."""
    folder, _, _ = recorded
    run = setup.prepare(with_rollout(tiny(tmp_path / "run"), replay=str(folder / "rollouts")))
    examples = collect.next_examples(run, setup.initial_state(run), 4)
    whole = collect.play_back(run, examples, step=1).pending.result()
    for places, own in ((range(2, 4), [2, 3]), (range(3, 5), [3, 3])):
        monkeypatch.setattr(collect.hosts, "share", lambda total, places=places: places)
        started = collect.play_back(run, examples, step=1)
        assert started.places == places and [place for place, _ in started.pending.groups()] == [0, 1]
        rollout = started.pending.result()
        index = [4 * place + sample for place in own for sample in range(4)]
        np.testing.assert_array_equal(rollout.completion_ids, whole.completion_ids[index])
        np.testing.assert_array_equal(rollout.group_ids, [0] * 4 + [1] * 4)
    run.checkpoints.close()
    run.sampler.close()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--train.steps", "6"],
            "has no step-000005, expected all up to train.steps = 6; it has step-000001, ",
        ),
        (["--rollout.group_size", "8"], "has 16 completions, expected 32: rollout.batch_size = 4 times"),
        (["--rollout.batch_size", "2"], "has 16 completions, expected 8: rollout.batch_size = 2 times"),
        (
            ["--rollout.batch_size", "2"],
            "; rollout.dynamic_sampling True plays back 2 rounds of as many",
        ),
        (["--run.seed", "1"], "the prompts differ from row 0 on. Data, tokenizer, seed,"),
        (["--data.operations", "-"], "the prompts differ from row 0 on. Data, tokenizer, seed,"),
        (["--rollout.batch_size", "8", "--rollout.group_size", "2"], "the prompts differ from row 2 on"),
        (["--rollout.max_completion_length", "2"], "completion_ids; expected at most 2"),
        (["--rollout.environment", "calculator"], "rollout.environment: got 'calculator', but"),
        (["--rollout.lag", "1"], "rollout.lag: got 1, expected 0 with rollout.replay"),
        (["--rollout.devices", "2"], "rollout.devices: got 2, expected 0 with rollout.replay"),
        (["--rollout.record", "True"], "rollout.record: got True, expected False with rollout.replay"),
        (["--rollout.replay", "nowhere"], "rollout.replay: got 'nowhere', expected a recording: there is no"),
        (
            ["--rollout.replay", "{here}"],
            "rollout.replay: {here} has no step-000001, expected all up to train.steps = 4",
        ),
        (
            ["--rollout.replay", "{here}/tiny.py"],
            "rollout.replay: {here}/tiny.py ends in '.py'; expected .jsonl",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_before_the_run(recorded, tmp_path, capsys, flags, message):
    path = tmp_path / "tiny.py"
    path.write_text(experiment.to_source(tiny(tmp_path / "run")))
    if "--rollout.replay" not in flags:
        flags = [*flags, "--rollout.replay", str(recorded[0] / "rollouts")]
    with pytest.raises(SystemExit) as exit_:
        main(["train", str(path), *(flag.format(here=tmp_path) for flag in flags)])
    text = capsys.readouterr().err.strip()
    assert exit_.value.code == 2 and len(text.splitlines()) == 1 and message.format(here=tmp_path) in text
    assert not (tmp_path / "run").exists()


def test_a_later_step_of_other_prompts_stops_the_run_by_name(recorded, tmp_path):
    folder = shutil.copytree(recorded[0] / "rollouts", tmp_path / "rollouts")
    shutil.copy(folder / STEPS[0], folder / STEPS[2])
    with pytest.raises(ValueError, match=r"step-000003\.parquet: expected the call it is named after"):
        loop.train(setup.prepare(with_rollout(tiny(tmp_path / "run"), replay=str(folder))))


@pytest.mark.parametrize("token", [9999, -5])
def test_a_token_that_the_model_does_not_have_is_an_error(recorded, tmp_path, token):
    """Else it would train on whatever a look-up beyond the embedding gives."""
    folder = shutil.copytree(recorded[0] / "rollouts", tmp_path / "rollouts")
    table = pq.read_table(folder / STEPS[0])
    rows = table.to_pylist()
    rows[5]["completion_ids"][0] = token
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / STEPS[0])
    with pytest.raises(ValueError, match=rf"rollout\.replay: step-000001 of .* has token {token}, expected"):
        setup.prepare(with_rollout(tiny(tmp_path / "run"), replay=str(folder)))
