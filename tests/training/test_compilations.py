"""Over a run of ragged lengths the update and the log-prob pass are compiled once, and the sampler once for each size."""

from collections import Counter
from dataclasses import replace

import numpy as np

from grpo_jax.config import EvaluationConfig, TrainConfig, WarmStartConfig
from grpo_jax.training import loop, setup, sizes
from grpo_jax.training.records import read_rows
from tests.rollout.test_compilations import compiled
from tests.tiny import tiny
from tests.training.test_loop import measured


def test_twenty_steps_of_ragged_lengths_compile_the_update_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "SHORTEST_CUT", 1)  # or completions as short as these would have one size
    config = tiny(
        tmp_path / "run",
        warm_start=WarmStartConfig(steps=2, batch_size=8),
        train=TrainConfig(steps=20),
        evaluation=EvaluationConfig(every=10, problems=2, samples=1),
    )
    config = replace(config, rollout=replace(config.rollout, max_completion_length=8))
    run = setup.prepare(replace(config, checkpoint=replace(config.checkpoint, every=0)))
    engine, generator = run.sampler.engine, np.random.default_rng(0)
    generate, before = engine.generate, compiled()

    def ragged(prompt_ids, *, sampling, **options):
        shape, longest = (len(prompt_ids), sampling.group_size), generator.integers(1, 9)
        limits = generator.integers(1, longest + 1, shape)
        return generate(prompt_ids, sampling=sampling, max_tokens=limits, **options)

    monkeypatch.setattr(engine, "generate", ragged)
    loop.train(run)
    rows = [row for row in measured(run.folder) if row["stage"] == "policy" and row["step"]]
    assert len(rows) == 20 and len({row["length/total"] for row in rows}) > 10
    programs = (run.update.program, run.log_prob_pass, run.warm_update.program)
    assert [program._cache_size() for program in programs] == [1, 1, 1]
    counted = [
        row["sampler/programs"] for row in read_rows(run.folder / "metrics.jsonl") if "reward/mean" in row
    ]
    assert len(counted) == 20 and counted == sorted(counted) and 5 < counted[-1] <= len(engine.programs)
    assert f"programs {counted[-1]:.0f}" in capsys.readouterr().out.splitlines()[-1]  # where a user looks
    found, noted = compiled() - before, Counter(program for program, _ in engine.programs)
    print(f"update 1, log-prob pass 1, sampler {dict(found)} of {dict(noted)} sizes")
    assert all(found[name] <= noted[name] for name in found)
