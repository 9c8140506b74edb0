"""The automatic micro-batch: what fits is decided by the compiler's own numbers, at a few sizes."""

import itertools
from dataclasses import replace

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax import amounts, experiment
from grpo_jax.config import Config, MeshConfig, RolloutConfig, UpdateConfig
from grpo_jax.training import fitting, setup, sharding
from tests.tiny import MODEL, tiny


@pytest.mark.parametrize("limit", range(0, 40))
def test_halving_finds_the_largest(limit):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= limit

    sizes = [1, 2, 4, 7, 13, 26]
    assert fitting.largest(sizes, fits) == max((s for s in sizes if s <= limit), default=None)
    assert len(asked) <= 4 and len(set(asked)) == len(asked)


def test_sizes_to_try(tmp_path):
    config = tiny(
        tmp_path / "run",
        rollout=RolloutConfig(batch_size=13, group_size=4),
        update=UpdateConfig(micro_batch=amounts.AUTO),
    )
    grouped = replace(config, update=replace(config.update, layout="group"))
    assert fitting.candidates(grouped, shards=1) == [4, 8, 16, 28, 52]
    assert fitting.candidates(grouped, shards=4) == [16, 32, 64]  # 13 groups for 4 devices
    assert fitting.candidates(config, shards=1) == [1, 2, 4, 8, 16, 28, 52]
    assert fitting.candidates(config, shards=4) == [4, 8, 16, 28, 52]  # not whole groups


@given(
    groups=st.integers(1, 40),
    group=st.integers(2, 9),
    shards=st.integers(1, 8),
    layout=st.sampled_from(["auto", "plain", "group", "packed"]),
)
def test_sizes_to_try_are_those_that_run(groups, group, shards, layout):
    """Every size goes with the layout, and is what a device gets: so what was compiled is what the run needs."""
    config = Config(
        rollout=RolloutConfig(batch_size=groups, group_size=group),
        update=UpdateConfig(micro_batch=amounts.AUTO, layout=layout),
        mesh=MeshConfig(data=shards),
    )
    sizes = fitting.candidates(config, shards=shards)
    rows = [amounts.rows_per_device(sized(config, size), shards=shards) for size in sizes]
    assert [row * shards for row in rows] == sizes == sorted(sizes)
    whole = amounts.rows_per_device(config, shards=shards)
    assert rows[-1] == whole
    if layout == "group":
        assert rows[0] == group and not any(row % group for row in rows)
    elif layout == "auto" and whole % group == 0:
        assert rows[0] == 1 and not any(row % group for row in rows if row > group)
    else:
        assert rows[0] == 1
    # None that was left out is twice as large as the next smaller one.
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(rows))


@pytest.fixture(scope="module")
def large_step(tmp_path_factory):
    """64 sequences, so that activations outweigh the state."""
    return tiny(
        tmp_path_factory.mktemp("auto") / "run",
        model=replace(MODEL, vocab_size=64, max_position=64, remat="none"),
        rollout=RolloutConfig(batch_size=8, group_size=8, max_prompt_length=24, max_completion_length=40),
        update=UpdateConfig(micro_batch=amounts.AUTO, layout="plain", head_memory_mib=1),
        mesh=MeshConfig(data=1),
    )


def sized(config, size, gib=0.0):
    return replace(config, update=replace(config.update, micro_batch=size, memory_budget_gib=gib))


def test_a_larger_micro_batch_needs_more(large_step):
    """By the compiler's numbers: four times the rows, and activations are nearly all there is."""
    mesh = sharding.make_mesh(1)
    small, large = (fitting.needed(sized(large_step, size), large_step.model, mesh=mesh) for size in (8, 32))
    assert 3 * small < large < 6 * small


def test_the_budget_decides(large_step, monkeypatch):
    """With a pretended compiler that says a GiB for each sequence."""
    mesh = sharding.make_mesh(1)
    monkeypatch.setattr(fitting, "needed", lambda config, *_, **__: config.update.micro_batch * 2**30)

    def found(gib):
        config = sized(large_step, amounts.AUTO, gib)
        return fitting.with_micro_batch(config, large_step.model, mesh=mesh).update.micro_batch

    assert [found(gib) for gib in (1, 7.9, 8, 63, 64, 1000)] == [1, 4, 8, 32, 64, 64]
    with pytest.raises(ValueError, match="not even 1 sequences"):
        found(0.5)
    assert 1 <= found(0.0) <= 64  # of this machine's memory


def test_a_run_keeps_the_number_it_found(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "needed", lambda config, *_, **__: 0)
    config = tiny(tmp_path / "run", update=UpdateConfig(micro_batch=amounts.AUTO))
    run = setup.prepare(config)
    assert run.config.update.micro_batch == 16 and run.micro_batches == 1
    assert experiment.load(run.folder / "config.py").update.micro_batch == 16
    monkeypatch.setattr(fitting, "needed", None)  # a resumed run does not ask again
    resumed = setup.prepare(replace(config, run=replace(config.run, resume=True)))
    assert resumed.config.update.micro_batch == 16


def test_a_compiler_that_gives_up_means_that_it_does_not_fit(large_step, monkeypatch):
    def give_up(self, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM")

    monkeypatch.setattr(jax.stages.Lowered, "compile", give_up)
    assert fitting.needed(large_step, large_step.model, mesh=sharding.make_mesh(1)) == float("inf")


def test_anything_else_that_goes_wrong_is_shown(large_step, monkeypatch):
    def fail(self, *arguments):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        fitting.needed(large_step, large_step.model, mesh=sharding.make_mesh(1))
