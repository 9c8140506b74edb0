"""The calculator experiment, whole: a small model learns to call a tool and to use its answer. Takes minutes."""

from dataclasses import replace
from pathlib import Path

import pytest

from grpo_jax import experiment
from grpo_jax.training import loop, setup
from grpo_jax.training.records import read_rows

EXPERIMENT = Path(__file__).resolve().parent.parent / "experiments" / "calculator.py"


@pytest.mark.slow
def test_calling_the_calculator_is_learnt(tmp_path):
    config = experiment.load(EXPERIMENT)
    config = replace(
        config,
        run=replace(config.run, folder=str(tmp_path / "run")),
        mesh=replace(config.mesh, data=1),
    )
    run = setup.prepare(config)
    loop.train(run)
    rows = [row for row in read_rows(run.folder / "metrics.jsonl") if row["stage"] == "policy"]
    before, after = rows[0], rows[-1]
    assert after["eval/accuracy_low"] > before["eval/accuracy_high"] + 0.2
    assert after["turns/mean"] > 1.8  # by way of the calculator, not past it
    assert max(row["sampler/log_prob_gap"] for row in rows[1:]) < 1e-4
