"""A whole evaluation at tiny size: what it finds, what a kill changes (nothing), what it refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grpo_jax.cli import main
from grpo_jax.config import RolloutConfig
from grpo_jax.evaluation import judging
from grpo_jax.evaluation.ledger import read_settings
from grpo_jax.evaluation.model import evaluate_model
from grpo_jax.models.tokenizers import CharacterTokenizer
from grpo_jax.rollout import NativeEngine
from grpo_jax.statistics import compare
from grpo_jax.training.records import read_rows
from tests.evaluation.models import KILL_AFTER, write_model, write_run
from tests.tiny import vowels

SLOTS = 8
"""Few enough for several calls: 20 problems of 3 samples take 4."""
OPTIONS = {"problems": 20, "slots": SLOTS}
FLAGS = ["--problems", "20", "--slots", str(SLOTS)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("evaluated") / "run")


@pytest.fixture(scope="module")
def whole(run):
    """The uninterrupted evaluation of the run's newest checkpoint."""
    return evaluate_model(run, **OPTIONS)


def completions(folder: Path, suite: str = "held-out") -> str:
    return (folder / suite / "completions.jsonl").read_text()


def complaint(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["eval", *map(str, arguments)])
    assert exit_.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("grpo-jax: error: ")
    return error


def test_a_runs_own_problems_under_its_own_judge(run, whole):
    assert whole.folder == run / "evaluations" / "step-1"
    found = whole["held-out"]
    assert (found.problems, found.samples, found.settings["temperature"]) == (20, 3, 0.9)
    rows = read_rows(whole.folder / "held-out/completions.jsonl")
    verdicts = [vowels(None, row["completion"]) >= 1 for row in rows]
    assert [row["correct"] for row in rows] == verdicts
    assert found.accuracy.value == np.mean(verdicts) and 0.1 < np.mean(verdicts) < 0.9
    assert found.length_mean == np.mean([row["length"] for row in rows])
    assert {row["length"] for row in rows} <= {1, 2, 3, 4}
    assert len({row["completion"] for row in rows}) > 30  # every sample of every problem has its own noise


def test_a_run_is_sampled_as_it_was_trained_unless_asked_otherwise(tmp_path):
    """Its rollout's settings, as its own evaluations do; the temperature is its evaluation's."""
    stops, encode = ("a", "1"), CharacterTokenizer().encode_text
    rollout = RolloutConfig(
        batch_size=4,
        group_size=4,
        max_prompt_length=8,
        max_completion_length=4,
        temperature=0.7,
        top_k=9,
        top_p=0.8,
        min_p=0.01,
        repetition_penalty=1.5,
        logit_bias={id: 9.0 for id in encode("a1")},
        forbidden_ids=tuple(encode("b")),
        stop_strings=stops,
        allow_truncated_sampling=True,
    )
    run = write_run(tmp_path / "run", rollout=rollout)
    own = evaluate_model(run, problems=8)
    how = "temperature 0.9, top_p 0.8, top_k 9, min_p 0.01, repetition_penalty 1.5, seed 0"
    assert own.title.endswith(f"step 1: 3 samples a problem, {how}") and str(own).startswith(own.title)
    texts = [row["completion"] for row in read_rows(own.folder / "held-out/completions.jsonl")]
    assert (
        sum(text[-1:] in stops for text in texts) > 12
    )  # they are the likeliest by far, and end a completion
    assert all(set(text[:-1]).isdisjoint(stops) and "b" not in text for text in texts)
    assert read_settings(own.folder / "held-out")["stop_strings"] == list(stops)
    wider = evaluate_model(
        run, problems=2, top_k=0, top_p=0.95, min_p=0, repetition_penalty=1, out=tmp_path / "wider"
    )
    assert wider.title.endswith("temperature 0.9, top_p 0.95, seed 0")
    greedy = evaluate_model(run, problems=2, temperature=0, out=tmp_path / "greedy")
    assert greedy.title.endswith("1 samples a problem, temperature 0, repetition_penalty 1.5, seed 0")


def test_a_completion_does_not_depend_on_the_call_it_is_made_in(run, whole, tmp_path):
    """Between shapes rounding may move a draw that lies near a boundary, hence a few of 60."""
    evaluate_model(run, out=tmp_path, problems=20, slots=64)
    one_call, four_calls = (completions(folder).splitlines() for folder in (tmp_path, whole.folder))
    assert len(one_call) == 60
    assert sum(a != b for a, b in zip(one_call, four_calls, strict=True)) <= 3


def test_the_results_are_there_in_every_form(whole):
    assert json.loads((whole.folder / "results.json").read_text()) == whole.numbers()
    assert (whole.folder / "results.txt").read_text() == str(whole)
    assert (whole.folder / "results.tex").read_text() == whole.latex()


def test_an_evaluation_that_was_killed_goes_on_to_the_same_results(run, whole, tmp_path):
    """20 x 3 completions in calls of 5 problems; the kill comes while the second call is judged."""
    command = [sys.executable, "-m", "grpo_jax", "eval", str(run), *FLAGS, "--out", str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    killed = subprocess.run(
        command, env={**os.environ, KILL_AFTER: "20"}, cwd=root, capture_output=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    begun = completions(tmp_path)
    assert begun.count("\n") == 18 and completions(whole.folder).startswith(begun)
    # As if it had come while a row of the second call was being written, too.
    next_rows = completions(whole.folder)[len(begun) :][:300]
    (tmp_path / "held-out/completions.jsonl").write_text(begun + next_rows)
    again = evaluate_model(run, out=tmp_path, **OPTIONS)
    assert completions(tmp_path) == completions(whole.folder)
    assert again.numbers() == whole.numbers()


def test_ctrl_c_says_how_to_go_on(run, whole, tmp_path, capsys, monkeypatch):
    real = judging.judged

    def interrupted(job, problem, *rest):
        if problem == 7:
            raise KeyboardInterrupt
        return real(job, problem, *rest)

    monkeypatch.setattr(judging, "judged", interrupted)
    command = ["eval", str(run), *FLAGS, "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as exit_:
        main(command)
    assert exit_.value.code == 130 and "the same command goes on" in capsys.readouterr().err
    monkeypatch.setattr(judging, "judged", real)
    main(command)
    assert completions(tmp_path) == completions(whole.folder)


def test_parameters_are_loaded_once_for_all_calls(run, tmp_path, monkeypatch):
    loaded, calls = [], []
    for name, seen in (("load", loaded), ("generate", calls)):
        real = getattr(NativeEngine, name)
        monkeypatch.setattr(
            NativeEngine,
            name,
            lambda self, x, real=real, seen=seen, **k: seen.append(x) or real(self, x, **k),
        )
    evaluate_model(run, out=tmp_path, **OPTIONS)
    assert len(calls) == 4 and [params is None for params in loaded] == [False, True]


def test_a_finished_evaluation_samples_and_loads_nothing(run, whole, monkeypatch):
    def used(*_, **__):
        raise AssertionError("it used the sampler")

    monkeypatch.setattr(NativeEngine, "generate", used)
    monkeypatch.setattr(NativeEngine, "load", used)
    assert evaluate_model(run, **OPTIONS).numbers() == whole.numbers()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"temperature": 1.0}, "temperature"),
        ({"seed": 1}, "seed"),
        ({"step": 0}, "step"),
        ({"samples": 2}, "samples"),
    ],
)
def test_a_folder_of_other_settings_is_refused_by_name(run, whole, changes, name):
    before = completions(whole.folder)
    with pytest.raises(ValueError, match=f"holds results with {name} "):
        evaluate_model(run, out=whole.folder, **OPTIONS | changes)
    assert completions(whole.folder) == before


@pytest.fixture(scope="module")
def earlier(run):
    return evaluate_model(run, step=0, **OPTIONS)


def test_against_a_baseline_on_the_same_problems(run, whole, earlier):
    results = evaluate_model(run, baseline=earlier.folder, **OPTIONS)
    expected = compare(earlier["held-out"].correct, whole["held-out"].correct)
    assert results.comparisons == {"held-out": expected}
    assert expected.difference == pytest.approx(
        whole["held-out"].accuracy.value - earlier["held-out"].accuracy.value
    )
    assert f"{100 * expected.difference:+.1f} [" in str(results) and "Against" in str(results)
    assert results["held-out"].strata.by == "baseline's pass rate"


def test_another_set_of_problems_is_no_baseline(run, earlier, tmp_path):
    with pytest.raises(ValueError, match=r"held-out has 20 problems in .* and 19 here"):
        evaluate_model(run, baseline=earlier.folder, out=tmp_path / "new", problems=19)
    assert not (tmp_path / "new").exists()


def test_a_pretrained_model_on_a_preset_and_on_a_runs_problems(run, tmp_path):
    model = write_model(tmp_path / "model", context=160)
    rows = [{"question": f"What is {i} and 1?", "answer": f"#### {i + 1}"} for i in range(3)]
    (tmp_path / "gsm8k_test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = {"tasks": ["gsm8k", str(run)], "problems": 3, "samples": 2, "slots": SLOTS}
    results = evaluate_model(model, data=tmp_path, out=tmp_path / "out", **options)
    assert [suite.name for suite in results.suites] == ["gsm8k", "held-out"]
    assert results["gsm8k"].maj_at and not results["held-out"].maj_at
    judged = read_rows(tmp_path / "out/gsm8k/completions.jsonl")
    assert {row["verdict"] for row in judged} <= {"different", "no answer"}
    # The recommended 1,024 tokens do not fit into a context of 160; the limit used is what does.
    longest = max(len(row["prompt"]) for row in judged) + 1  # BOS
    assert results["gsm8k"].settings["max_tokens"] == 160 - longest
    assert f"gsm8k: completions of {160 - longest} tokens at most" in str(results)
    with pytest.raises(ValueError, match=rf"max_tokens: got 150, .* expected 1 to {160 - longest}"):
        evaluate_model(model, data=tmp_path, max_tokens=150, **options)


def test_the_command_prints_text_json_and_latex(run, whole, capsys):
    main(["eval", str(run), *FLAGS])
    assert capsys.readouterr().out.startswith(str(whole))
    main(["eval", str(run), *FLAGS, "--json"])
    assert json.loads(capsys.readouterr().out) == whole.numbers()
    main(["eval", str(run), *FLAGS, "--latex"])
    assert capsys.readouterr().out == whole.latex()
    assert (whole.folder / "accuracy.svg").exists() and (whole.folder / "accuracy.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "gsm9k"], "tasks: got 'gsm9k', expected run, gsm8k, math"),
        (["--tasks", "run,run"], "none of a name twice"),
        (["--tasks", "gsm8k"], "tasks: gsm8k expects gsm8k_test.jsonl"),
        (["--samples", "2", "--temperature", "0"], "samples: got 2, expected 1"),
        (["--samples", "0"], "group_size is 0"),
        (["--problems", "-1"], "problems: got -1, expected at least 0"),
        (["--slots", "0"], "slots: got 0, expected at least 1"),
        (["--max-tokens", "0"], "max_tokens: got 0"),
        (["--chat"], "the character tokenizer has no chat template"),
        (["--system-prompt", "x", "--no-chat"], "system_prompt"),
        (["--step", "7"], "step: got 7"),
        (["--max-tokens", "40"], "max_tokens: got 40"),
        (["--baseline", "nowhere"], "holds no results of held-out"),
        (["--json", "--latex"], "not allowed with"),
        (["--sample", "2x"], "invalid int value"),
        (["--seed", "9" * 20], "seed: got 99999999999999999999, expected a whole number of 64 bits"),
    ],
)
def test_mistakes_are_one_line_that_names_them(run, capsys, monkeypatch, arguments, message):
    monkeypatch.delenv("GRPO_JAX_DATA", raising=False)
    assert message in complaint(capsys, run, *arguments)


def test_a_model_without_tasks_has_none(capsys, tmp_path):
    assert "tasks: got [], expected at least one" in complaint(capsys, write_model(tmp_path / "model"))
