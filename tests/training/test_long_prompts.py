"""Prompts that are too long: an error, or left out and counted, never silently."""

from dataclasses import replace

import pytest

from grpo_jax.config import ArithmeticData, MixtureData
from grpo_jax.config import Component as Part
from grpo_jax.training import setup
from tests.tiny import tiny


def prepared(folder, *, data, limit, drop):
    config = tiny(folder, data=data)
    rollout = replace(config.rollout, max_prompt_length=limit, drop_long_prompts=drop)
    run = setup.prepare(replace(config, rollout=rollout))
    run.checkpoints.close()
    return run


def test_long_prompts_are_left_out_with_a_warning_that_counts_them(tmp_path):
    data = ArithmeticData(max_digits=2, size=300, held_out_fraction=0.3)  # 5 to 7 tokens, <bos> included
    with pytest.raises(
        ValueError, match=r"rollout\.max_prompt_length: got 6, but a training prompt has 7 tokens"
    ):
        prepared(tmp_path / "a", data=data, limit=6, drop=False)
    with pytest.warns(UserWarning) as caught:
        run = prepared(tmp_path / "b", data=data, limit=6, drop=True)
    everything = prepared(tmp_path / "c", data=data, limit=7, drop=True)
    short = [[len(e.prompt_ids) <= 6 for e in part] for part in (everything.train, everything.held_out)]
    assert all(len(e.prompt_ids) <= 6 for e in (*run.train, *run.held_out))
    assert [len(run.train), len(run.held_out)] == [sum(part) for part in short]
    left_out = [len(part) - sum(part) for part in short]
    assert (
        f"rollout.drop_long_prompts: {left_out[0]} of {len(short[0])} training problems and {left_out[1]} of "
        f"{len(short[1])} held-out ones have prompts of more than 6 tokens, and are left out"
    ) in str(caught[0].message)
    assert left_out[0] > left_out[1] > 0


def test_a_mixture_still_draws_from_its_own_pools(tmp_path):
    long, short = ArithmeticData(size=99, operations=("*",)), ArithmeticData(size=99, max_digits=1)
    with pytest.warns(UserWarning, match="are left out"):
        run = prepared(tmp_path / "run", data=MixtureData((Part(long), Part(short))), limit=6, drop=True)
    for pool, sign in zip(run.mixture.pools, "*+", strict=True):
        assert pool and all(sign in run.train[i].problem.prompt for i in pool)
