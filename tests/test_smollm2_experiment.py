"""The SmolLM2 experiment, cut to three small steps: a real model is sampled, judged and moved. Takes minutes."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from grpo_jax import experiment
from grpo_jax.training import loop, setup
from grpo_jax.training.records import read_rows
from tests.models.smollm2 import gguf_path

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "smollm2_arithmetic.py"


@pytest.mark.slow
def test_three_steps_of_the_real_model(tmp_path):
    config = experiment.load(EXPERIMENT)
    config = replace(
        config,
        run=replace(config.run, folder=str(tmp_path / "run")),
        model=replace(config.model, path=str(gguf_path())),
        rollout=replace(config.rollout, batch_size=2),
        mesh=replace(config.mesh, data=1),
        train=replace(config.train, steps=3),
        evaluation=replace(config.evaluation, problems=4, samples=1),
    )
    run = setup.prepare(config)
    state = loop.train(run)
    rows = [row for row in read_rows(run.folder / "metrics.jsonl") if row["step"]]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert max(row["sampler/log_prob_gap"] for row in rows) < 1e-4
    moved = jax.tree.leaves(state.params["blocks"]["query"]["adapter"]["b"])[0]
    assert any(row["grad/norm"] > 0 for row in rows) == bool(np.any(np.asarray(moved) != 0))
    assert not any(row["update/skipped"] for row in rows)
