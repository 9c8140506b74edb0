"""What the README shows is run, not only read."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from grpo_jax import experiment, validation

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_losses_example_runs_and_moves_the_model():
    code = re.search(r"<!-- the losses example -->\n```python\n(.*?)```", README, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    names = {}
    with jax.numpy_rank_promotion("allow"):
        exec(compile(code, "README.md", "exec"), names)
        now = names["log_probs_of"](names["model"])
    better = ((now - names["old"]) * names["mask"] * names["advantages"][:, None]).sum()
    assert better > 0 and float(names["history"].num_batches) == 1


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=lambda path: path.stem)
def test_every_experiment_loads_and_its_config_runs_again(path, tmp_path):
    config = experiment.load(path)
    validation.validate(config, devices=1)
    copy = tmp_path / "config.py"
    copy.write_text(experiment.to_source(config))
    assert experiment.load(copy) == config


def test_help_lists_fields_with_meaning_unit_and_default():
    done = subprocess.run(
        [sys.executable, "-m", "grpo_jax", "train", "experiments/quickstart.py", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for part in (
        "--rollout.max_completion_length INT",
        "tokens, stop token included",
        "(default: 4)",
        "--loss.clip_high",
    ):
        assert part in done.stdout
