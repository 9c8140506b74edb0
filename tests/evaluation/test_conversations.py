"""A run whose policy talks with an environment is evaluated as it trains: in conversations."""

import pytest

from grpo_jax.config import RolloutConfig
from grpo_jax.evaluation.model import evaluate_model
from grpo_jax.training.records import read_rows
from tests.evaluation.models import write_run
from tests.tiny import vowels

ROLLOUT = RolloutConfig(
    batch_size=2,
    group_size=4,
    max_prompt_length=8,
    max_completion_length=8,
    environment="tests.training.test_environment:Echo",
    max_turns=3,
)
OPTIONS = {"problems": 10, "samples": 4, "slots": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("talking") / "run", rollout=ROLLOUT)


@pytest.fixture(scope="module")
def whole(run):
    return evaluate_model(run, **OPTIONS)


def test_the_last_turn_is_judged_and_all_are_kept(whole):
    rows = read_rows(whole.folder / "held-out/completions.jsonl")
    assert len(rows) == 40 and max(len(row["turns"]) for row in rows) > 1
    for row in rows:
        assert [turn["role"] for turn in row["turns"]] == (["assistant", "environment"] * 9)[
            : len(row["turns"])
        ]
        assert row["turns"][-1]["content"] == row["completion"]
        assert row["correct"] == (vowels(None, row["completion"]) >= 1)
    # What the environment answers: the number of characters of the turn before.
    said = next(row["turns"] for row in rows if len(row["turns"]) > 1)
    assert said[1]["content"] == str(len(said[0]["content"]))


def test_calls_have_noise_of_their_own(whole):
    """Problems 0 to 2 and 4 to 6 have the same places in their calls; a random model hardly looks at its prompt."""
    rows = read_rows(whole.folder / "held-out/completions.jsonl")
    begins = {(row["problem"], row["sample"]): row["turns"][0]["content"][:1] for row in rows}
    same = [begins[i, j] == begins[i + 4, j] for i in range(3) for j in range(4)]
    assert sum(same) <= 3


def test_conversations_go_on_where_a_kill_cut_them_short(run, whole, tmp_path):
    folder = whole.folder / "held-out"
    (tmp_path / "held-out").mkdir()
    lines = (folder / "completions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "held-out/settings.json").write_text((folder / "settings.json").read_text())
    (tmp_path / "held-out/completions.jsonl").write_text("".join(lines[:18]))
    assert evaluate_model(run, out=tmp_path, **OPTIONS).numbers() == whole.numbers()
    assert (tmp_path / "held-out/completions.jsonl").read_text() == "".join(lines)


def test_the_environment_is_a_setting(run, whole, tmp_path):
    config = (run / "config.py").read_text()
    assert "max_turns=3" in config
    other = tmp_path / "config.py"
    other.write_text(config.replace("max_turns=3", "max_turns=2"))
    with pytest.raises(ValueError, match=r"results with environment \[.*Echo', \{\}, 3\]"):
        evaluate_model(run, tasks=[str(other)], out=whole.folder, **OPTIONS)
