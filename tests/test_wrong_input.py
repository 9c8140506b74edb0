"""A newcomer's mistakes: each is one clear line naming the field, before anything is trained, and no traceback."""

import json
from dataclasses import replace

import pytest

from grpo_jax import experiment
from grpo_jax.cli import main
from grpo_jax.config import DriftFixConfig, HistoryConfig
from grpo_jax.training import loop, setup
from tests.tiny import tiny


@pytest.fixture
def experiment_file(tmp_path):
    """The tiny experiment as a file, and the folder of its run."""
    path = tmp_path / "tiny.py"
    path.write_text(experiment.to_source(tiny(tmp_path / "run")))
    return path


@pytest.fixture
def rows_file(tmp_path):
    """An experiment on a JSONL file, and a function that writes the file."""
    path, data = tmp_path / "rows.py", tmp_path / "rows.jsonl"
    source = experiment.to_source(tiny(tmp_path / "run"))
    start, end = source.index("    data="), source.index("    tokenizer=")
    path.write_text(source[:start] + f"    data=FileData(path={str(data)!r}),\n" + source[end:])
    return path, data


def complaint(capsys, *arguments) -> str:
    """What the command prints on stderr when it refuses; exactly one line."""
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    assert exit_.value.code == 2
    text = capsys.readouterr().err.strip()
    assert text.startswith("grpo-jax: error: ") and "Traceback" not in text
    return text


FLAGS = {
    "unknown flag": (
        ["--rollout.group_siz", "4"],
        ["--rollout.group_siz", "did you mean --rollout.group_size"],
    ),
    "wrong type": (["--rollout.group_size", "four"], ["--rollout.group_size", "'four'"]),
    "not a choice": (["--loss.baseline", "median"], ["--loss.baseline", "group_mean"]),
    "unknown rule": (["--loss.aggregation", "balancd"], ["loss.aggregation", "balanced"]),
    "group size 1": (["--rollout.group_size", "1"], ["rollout.group_size", "got 1", "at least 2"]),
    "prompt longer than allowed": (
        ["--rollout.max_prompt_length", "3"],
        ["rollout.max_prompt_length", "got 3"],
    ),
    "longer than the context": (
        ["--model.max_position", "8"],
        ["max_completion_length", "model.max_position = 8"],
    ),
    "micro-batch that devices do not divide": (
        ["--mesh.data", "2", "--update.micro_batch", "3"],
        ["update.micro_batch", "got 3", "mesh.data x mesh.fsdp = 2"],
    ),
    "axis that splits nothing": (["--mesh.tensor", "5"], ["mesh.tensor", "got 5", "model.num_heads = 2"]),
    "no devices": (["--mesh.fsdp", "0"], ["mesh.fsdp", "got 0", "1 or more"]),
    "copies that do not fit": (["--mesh.data", "5", "--mesh.fsdp", "2"], ["mesh.data", "got 5", "at most 4"]),
    "mini-batch that does not divide": (["--update.mini_batch", "3"], ["update.mini_batch", "got 3"]),
    "more devices than there are": (["--mesh.data", "64"], ["mesh.data", "64"]),
    "no round": (["--rollout.max_rounds", "0"], ["rollout.max_rounds", "got 0", "a positive number"]),
    "lag on a mesh": (
        ["--mesh.data", "2", "--rollout.lag", "1"],
        ["rollout.lag", "got 1", "0 on a mesh of 2 devices without rollout.devices"],
    ),
    "no device left to train on": (
        ["--rollout.devices", "8"],
        ["rollout.devices", "got 8", "fewer than the 8 devices there are"],
    ),
    "sampling devices that do not divide": (
        ["--rollout.devices", "4", "--rollout.tensor", "3"],
        ["rollout.tensor", "got 3", "a divisor of rollout.devices = 4"],
    ),
    "parts of groups in the group layout": (
        ["--update.layout", "group", "--update.micro_batch", "6"],
        ["update.micro_batch", "got 6", "update.layout group", "rollout.group_size = 4"],
    ),
    "truncated sampling": (
        ["--rollout.top_p", "0.9"],
        ["rollout.top_p: got 0.9, expected 1.0", "allow_truncated_sampling"],
    ),
    "sampling of another policy": (
        ["--rollout.min_p", "0.1", "--rollout.repetition_penalty", "1.2"],
        ["rollout.min_p/repetition_penalty: got (0.1, 1.2), expected 0.0, 1.0", "allow_truncated_sampling"],
    ),
    "mass beyond the whole": (["--rollout.min_p", "1.5"], ["rollout.min_p: got 1.5, expected in [0, 1]"]),
    "no penalty": (["--rollout.repetition_penalty", "0"], ["rollout.repetition_penalty: got 0.0"]),
    "less than the first token": (["--rollout.forbidden_ids", "-3"], ["rollout.forbidden_ids: got (-3,)"]),
    "beyond the vocabulary": (
        ["--rollout.forbidden_ids", "9999", "--rollout.allow_truncated_sampling", "True"],
        ["rollout.forbidden_ids: got token 9999, expected ids below"],
    ),
    "endless bias": (["--rollout.logit_bias", "5", "inf"], ["rollout.logit_bias: got {5: inf}"]),
    "biased and forbidden": (
        ["--rollout.logit_bias", "5", "1", "--rollout.forbidden_ids", "5"],
        ["rollout.logit_bias: got {5: 1.0}, expected no token of rollout.forbidden_ids: [5]"],
    ),
    "endless heat": (
        ["--evaluation.temperature", "inf"],
        ["evaluation.temperature: got inf, expected a finite"],
    ),
    "the same sample twice": (
        ["--evaluation.temperature", "0"],
        ["evaluation.samples: got 2, expected 1 with evaluation.temperature = 0"],
    ),
    "empty stop": (["--rollout.stop_strings", ""], ["rollout.stop_strings: got ('',)"]),
    "negative micro-batch": (["--update.micro_batch", "-4"], ["update.micro_batch", "got -4"]),
    "negative mini-batch": (["--update.mini_batch", "-2"], ["update.mini_batch", "got -2"]),
    "negative number of problems": (["--evaluation.problems", "-1"], ["evaluation.problems", "got -1"]),
    "ddof of a whole group": (["--loss.ddof", "4"], ["loss.ddof", "got 4", "group_size = 4"]),
    "no heads": (["--model.num_kv_heads", "0"], ["model.num_kv_heads", "got 0"]),
    "odd head": (["--model.head_dim", "7"], ["model.head_dim", "7"]),
    "resume of nothing": (["--resume"], ["run.resume", "holds no run"]),
    "dual clip below 1": (["--loss.dual_clip", "0.5"], ["loss.dual_clip", "got 0.5", "above 1"]),
    "clip of everything": (["--loss.clip_low", "1.5"], ["loss.clip_low", "got 1.5"]),
    "endless moment": (["--optimizer.b1", "1.0"], ["optimizer.b1", "got 1.0"]),
    "endless moment of the warm start": (
        ["--warm_start.optimizer.b2", "1"],
        ["warm_start.optimizer.b2", "got 1.0"],
    ),
    "decay that grows": (["--optimizer.weight_decay", "-1"], ["optimizer.weight_decay", "got -1.0"]),
    "decay that is no number": (["--optimizer.weight_decay", "nan"], ["optimizer.weight_decay", "got nan"]),
    "root below zero": (["--optimizer.eps", "-1"], ["optimizer.eps", "got -1.0"]),
    "endless rate": (["--optimizer.learning_rate", "inf"], ["optimizer.learning_rate", "got inf"]),
    "bonus that is no number": (["--loss.entropy_coef", "nan"], ["loss.entropy_coef", "got nan"]),
    "no rotary base": (["--model.rope_theta", "0"], ["model.rope_theta", "0.0"]),
    "window of less than nothing": (["--model.layer_windows", "-3"], ["model.layer_windows", "-3"]),
    "drift fix of a ratio per token": (
        ["--loss.drift_fix.transform", "min_replace", "--loss.surrogate", "reinforce"],
        ["loss.ratio", "got 'token'", "'sequence' or 'sequence_product'"],
    ),
    "no window": (["--loss.history.window", "0"], ["loss.history.window", "got 0"]),
    "seed of 20 digits": (["--run.seed", "9" * 20], ["run.seed", "64 bits"]),
    "unknown reward": (["--reward.functions.0.name", "exact"], ["reward.functions", "exact_match"]),
    "unknown success reward": (["--evaluation.success", "exact"], ["evaluation.success", "exact_match"]),
}


@pytest.mark.parametrize("case", FLAGS)
def test_a_wrong_flag(capsys, experiment_file, case):
    flags, expected = FLAGS[case]
    text = complaint(capsys, "train", experiment_file, *flags)
    assert len(text.splitlines()) == 1
    for part in expected:
        assert part in text


WRITTEN = {
    "update.layout": ("plian", "'auto' or 'plain' or 'group' or 'packed'"),
    "update.old_log_probs": ("samplr", "'trainer' or 'sampler'"),
    "update.micro_batch": ("Auto", "int or 'auto'"),
    "update.epochs": (1.5, "int"),
    "update.offload_reference": ("yes", "bool"),
    "model.dtype": ("float16", "'float32' or 'bfloat16'"),
    "mesh.fsdp": ("2", "int"),
    "rollout.stop_strings": ("\n\n", "tuple"),
    "rollout.logit_bias": ((5, 1.0), "Mapping"),
    "loss.kl": ("k4", "'k1' or 'k2' or 'k3'"),
}


@pytest.mark.parametrize("field", WRITTEN)
def test_a_wrong_value_in_the_experiment_file(capsys, tmp_path, field):
    """Python takes any value for a field; a misspelt choice would train as another one."""
    value, expected = WRITTEN[field]
    section, name = field.split(".")
    config = tiny(tmp_path / "run")
    wrong = replace(getattr(config, section), **{name: value})
    path = tmp_path / "wrong.py"
    path.write_text(experiment.to_source(replace(config, **{section: wrong})))
    text = complaint(capsys, "train", path)
    assert text == f"grpo-jax: error: {field}: got {value!r}, expected {expected}"


def test_a_flag_turns_an_optional_section_on(tmp_path, capsys):
    config = tiny(tmp_path / "run")
    assert experiment.override(config, ["--loss.eps", "0.1"], "test").loss.history is None
    loss = experiment.override(config, ["--loss.history.window", "5"], "test").loss
    assert loss.history == HistoryConfig(window=5) and loss.drift_fix is None
    flags = ["--loss.drift-fix.stop-gradient=False"]
    assert experiment.override(config, flags, "test").loss.drift_fix == DriftFixConfig(stop_gradient=False)
    with pytest.raises(SystemExit):
        experiment.override(config, ["--help"], "test")
    text = capsys.readouterr().out
    assert "--loss.history.window" in text and "--loss.drift-fix.transform" in text.replace("_", "-")


def test_an_infinite_option_is_written_so_that_it_loads(tmp_path):
    config = tiny(tmp_path / "run")
    config = replace(config, optimizer=replace(config.optimizer, max_grad_norm=float("inf")))
    path = tmp_path / "config.py"
    path.write_text(experiment.to_source(config))
    assert experiment.load(path) == config


def test_wandb_without_its_extra(capsys, experiment_file, monkeypatch):
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    text = complaint(capsys, "train", experiment_file, "--run.wandb_project", "x")
    assert "run.wandb_project" in text and "grpo_jax[wandb]" in text


def test_no_experiment_file(capsys):
    assert "experiments/nothing.py" in complaint(capsys, "train", "experiments/nothing.py")
    assert "experiment file" in complaint(capsys, "train")
    assert "no command 'tain'" in complaint(capsys, "tain")


def test_an_experiment_file_without_a_config(capsys, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert "must define `config" in complaint(capsys, "train", tmp_path / "empty.py")
    (tmp_path / "broken.py").write_text("from grpo_jax.config import Confg\n")
    assert "ImportError" in complaint(capsys, "train", tmp_path / "broken.py")


def test_a_missing_data_file(capsys, rows_file):
    path, data = rows_file
    text = complaint(capsys, "train", path)
    assert "data.path" in text and data.name in text


def test_a_malformed_line_is_named_by_file_and_number(capsys, rows_file):
    path, data = rows_file
    data.write_text(json.dumps({"question": "1+1=", "answer": "2"}) + '\n{"question": "1+2="\n')
    text = complaint(capsys, "train", path)
    assert data.name in text and "2" in text


def test_an_empty_data_set(capsys, rows_file):
    path, data = rows_file
    data.write_text("")
    assert data.name in complaint(capsys, "train", path)


def test_a_missing_field_names_those_there_are(capsys, rows_file):
    path, data = rows_file
    data.write_text(json.dumps({"problem": "1+1=", "answer": "2"}) + "\n")
    text = complaint(capsys, "train", path)
    assert "question" in text and "problem" in text


def test_a_run_folder_that_cannot_be_written(capsys, experiment_file, tmp_path):
    (tmp_path / "file").write_text("")
    text = complaint(capsys, "train", experiment_file, "--run.folder", tmp_path / "file" / "run")
    assert "run.folder" in text and "Not a directory" in text


def nan_reward(problem, completion):
    return float("nan")


def test_a_nan_reward_shows_problem_and_completion(capsys, experiment_file):
    flags = ["--reward.functions.0.name", "tests.test_wrong_input:nan_reward", "--warm_start.steps", "0"]
    text = complaint(capsys, "train", experiment_file, *flags)
    assert "nan_reward" in text and "completion:" in text and "problem" in text


def nan_when_evaluated(problem, completion):
    return float("nan")


def test_a_reward_that_fails_in_the_evaluation_is_not_a_wrong_answer(capsys, experiment_file):
    flags = [
        "--reward.functions.1.name",
        "tests.test_wrong_input:nan_when_evaluated",
        "--warm_start.steps",
        "0",
    ]
    flags += ["--evaluation.success", "tests.test_wrong_input:nan_when_evaluated", "--train.steps", "0"]
    assert "nan_when_evaluated" in complaint(capsys, "train", experiment_file, *flags)


def test_resuming_with_another_model(capsys, experiment_file, tmp_path):
    loop.train(
        setup.prepare(experiment.override(experiment.load(experiment_file), ["--train.steps=1"], "test"))
    )
    text = complaint(capsys, "train", experiment_file, "--resume", "--model.width", "32")
    assert "model.width was 16" in text and "32 now" in text
    text = complaint(capsys, "train", experiment_file, "--resume", "--run.seed", "1")
    assert "run.seed was 0" in text and "1 now" in text
    # A config edited by hand does not get past the checkpoint itself.
    saved = tmp_path / "run" / "config.py"
    saved.write_text(saved.read_text().replace("mlp_width=32", "mlp_width=64"))
    text = complaint(capsys, "train", experiment_file, "--resume", "--model.mlp_width", "64")
    assert ("shape" in text and "mlp" in text) or "gate" in text or "down" in text
