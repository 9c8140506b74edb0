"""`grpo-jax sample` and `open_sampler`: a run or a model, prompts in, judged completions out."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from grpo_jax import tasks
from grpo_jax.cli import main
from grpo_jax.config import ArithmeticData, DifficultyData, FileData, PresetData, RewardFunction
from grpo_jax.sampling import Completion, open_sampler, output, prompts
from grpo_jax.training import loop, setup
from grpo_jax.types import Message, Problem
from tests.tiny import tiny
from tests.training.pretrained import experiment, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "llama")


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """A run of one step on that model, with two rewards."""
    run = setup.prepare(experiment(tmp_path_factory.mktemp("run") / "run", base, steps=1))
    loop.train(run)
    return run.folder


@pytest.fixture(scope="module")
def sampler(folder):
    return open_sampler(folder)


def command(capsys, monkeypatch, *arguments, stdin=None):
    monkeypatch.setattr("sys.stdin", io.StringIO(stdin or ""))
    main(["sample", *map(str, arguments)])
    return capsys.readouterr().out


def test_three_lines_of_a_notebook(folder):
    sampler = open_sampler(folder)
    completions = sampler(Problem("3+4=", "7"), samples=2)
    assert [(c.place, c.sample, c.prompt) for c in completions] == [(0, i, "3+4=") for i in range(2)]
    for c in completions:
        assert c.rewards.keys() == {"vowels", "exact_match"} and c.reward == sum(c.rewards.values())
        assert c.tokens <= 4 and c.log_prob < 0  # the run's own limit


def test_streamed_in_turn_and_the_same_alone(sampler):
    texts = [f"{i}+4=" for i in range(5)]
    whole = sampler(texts, samples=2, seed=3)
    assert [c.place for c in whole] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [c.text for group in sampler.stream(texts, samples=2, seed=3) for c in group] == [
        c.text for c in whole
    ]
    assert [c.text for c in sampler(texts[:1], samples=2, seed=3)] == [c.text for c in whole[:2]]
    assert [c.text for c in sampler(texts, samples=2, seed=4)] != [c.text for c in whole]
    assert all(c.reward is None and c.rewards == {} for c in whole)  # no answer to judge by


def test_settings_replace_the_runs(sampler):
    long = sampler("1+1=", max_tokens=9, stop_ids=())
    assert long[0].tokens == 9 and not long[0].stopped
    greedy = sampler("1+1=", samples=2, temperature=0)
    assert len({c.text for c in greedy}) == 1
    with pytest.raises(ValueError, match=r"sampling\.temperature is -1"):
        sampler("1+1=", temperature=-1)
    with pytest.raises(ValueError, match="warmth"):
        sampler("1+1=", warmth=1)
    with pytest.raises(ValueError, match=r"max_tokens: got 30, expected at most 27: .* longest prompt has 5"):
        sampler(["1=", "1+1="], max_tokens=30)
    with pytest.raises(ValueError, match="a prompt has 40 tokens; expected at most 31"):
        sampler("1" * 39)


def test_a_control_token_given_as_a_text_stops(sampler):
    text, id = next(iter(sampler.opened.tokenizer.control_tokens.items()))
    settings = {"max_tokens": 4, "stop_ids": (), "logit_bias": {id: 100.0}}
    assert not sampler("1+1=", **settings)[0].stopped
    stopped = sampler("1+1=", stop_strings=("no such", text), **settings)[0]
    assert stopped.stopped and stopped.tokens == 1 and stopped.text == ""


def test_a_model_has_no_rewards_but_those_it_is_given(base):
    assert open_sampler(base)(Problem("3+4=", "7"), max_tokens=3)[0].reward is None
    judged = open_sampler(base, rewards=[RewardFunction("exact_match")])
    assert judged(Problem("3+4=", "7"), max_tokens=3)[0].rewards == {"exact_match": 0.0}


def test_a_reader_that_stops_listening_stops_the_sampling(sampler):
    stream = sampler.stream([f"{i}+4=" for i in range(40)], samples=2)
    assert next(stream)[0].place == 0
    stream.close()
    assert sampler("3+4=")[0].tokens  # the engine is free again


def test_rows_become_problems(tmp_path):
    rows = [
        {"prompt": "1+1=", "answer": 2},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": "x"},
    ]
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\nnot json\n"
    found = prompts.from_lines(io.StringIO(lines), None)
    assert [p.answer for p in found] == ["2", "", "", ""]
    assert found[1].prompt == (Message("user", "hi"),) and found[3].prompt == "not json"
    (tmp_path / "rows.jsonl").write_text('{"q": "1+1", "a": "it is #### 2"}\n{"q": "1+1"}\n')
    with pytest.raises(ValueError, match=r"rows.jsonl:1: expected a field 'prompt' or 'messages'.*'q', 'a'"):
        prompts.from_file(str(tmp_path / "rows.jsonl"), None)
    data = FileData(path="x", prompt="{q}=", answer_field="a", answer_pattern="#### (.+)")
    config = replace(tiny(tmp_path), data=data)
    found = prompts.from_file(str(tmp_path / "rows.jsonl"), config)
    assert [(p.prompt, p.answer) for p in found] == [("1+1=", "2"), ("1+1=", "")]


def test_an_answer_of_zero_and_one_inside_another_field_are_answers(tmp_path):
    found = prompts.from_lines(io.StringIO('{"prompt": "5-5=", "answer": 0}\n'), None)
    assert [p.answer for p in found] == ["0"]
    data = FileData(path="x", prompt="{q}=", answer_field="solution.value")
    rows = '{"q": "5-5", "solution": {"value": 0}}\n{"q": "1+1", "solution": {"value": null}}\n{"q": "1+1"}\n'
    found = prompts.from_lines(io.StringIO(rows), replace(tiny(tmp_path), data=data))
    assert [(p.prompt, p.answer) for p in found] == [("5-5=", "0"), ("1+1=", ""), ("1+1=", "")]


def test_the_command_writes_json_lines(capsys, monkeypatch, folder, sampler):
    stdin = '{"prompt": "3+4=", "answer": "7"}\n5+5=\n'
    out = command(capsys, monkeypatch, folder, "--samples", 2, "--format", "jsonl", "--seed", 5, stdin=stdin)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [(row["place"], row["sample"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    expected = sampler([Problem("3+4=", "7"), "5+5="], samples=2, seed=5)
    assert [row["text"] for row in rows] == [c.text for c in expected]
    np.testing.assert_allclose([row["log_prob"] for row in rows], [c.log_prob for c in expected], atol=1e-5)
    assert rows[0]["rewards"].keys() == {"vowels", "exact_match"} and rows[2]["reward"] is None


def test_the_command_writes_text_and_a_table(capsys, monkeypatch, folder, tmp_path):
    out = command(capsys, monkeypatch, folder, "--prompt", "3+4=", "--prompt", "1+1=", "--max_tokens", 2)
    assert out.count("=== ") == 2 and "=== 3+4=" in out and "tokens, " in out and "log-prob -" in out
    (tmp_path / "rows.jsonl").write_text('{"prompt": "[3]+4=", "answer": "7"}\n')
    out = command(capsys, monkeypatch, folder, "--file", tmp_path / "rows.jsonl", "--format", "table")
    assert "completion" in out and "[3]+4=" in out and "reward" in out


def test_a_table_shows_texts_as_they_are():
    """Rich would take `:x:` for a picture and `[red]` for a colour."""
    group = [Completion(0, 0, "[red]1", ":x: [/red]", 2, True, -1.0, None, {})]
    console = Console(file=io.StringIO(), width=80)
    output.table([group], console)
    assert "[red]1" in (text := console.file.getvalue()) and ":x: [/red]" in text


def test_mistakes_are_one_line(capsys, monkeypatch, folder, tmp_path):
    for arguments, words in (
        ((folder,), "no prompts"),
        ((tmp_path / "none", "--prompt", "x"), "is not a folder"),
        ((folder, "--prompt", "x", "--top_p", 0), "sampling.top_p is 0.0"),
        ((folder, "--prompt", "x", "--max_tokens", 999), "max_tokens: got 999, expected at most"),
        ((folder, "--file", tmp_path / "none.jsonl"), "--file"),
        ((folder, "--prompt", "x", "--step", 9), "keeps checkpoints of steps"),
    ):
        with pytest.raises(SystemExit) as exit_:
            command(capsys, monkeypatch, *arguments)
        assert exit_.value.code == 2
        text = capsys.readouterr().err.strip()
        assert words in text and len(text.splitlines()) == 1


def few_shot(tmp_path, **data):
    return replace(
        tiny(tmp_path), data=ArithmeticData(max_digits=1, held_out_fraction=0.3, few_shot=2, **data)
    )


@pytest.mark.parametrize("system_prompt", [None, "Add."])
def test_a_row_like_the_runs_is_asked_as_the_run_asks(tmp_path, system_prompt):
    """The very prompts of its held-out problems, examples and all, from nothing but their questions and answers."""
    config = few_shot(tmp_path, system_prompt=system_prompt)
    held_out = tasks.build(config.data).held_out[:3]
    rows = [{"question": p.metadata["question"], "answer": p.answer} for p in held_out]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    found = prompts.from_lines(io.StringIO(lines + '{"prompt": "1+1="}\n2+2=\n'), config)
    assert [(p.prompt, p.answer) for p in found[:3]] == [(p.prompt, p.answer) for p in held_out]
    assert [p.prompt for p in found[3:]] == ["1+1=", "2+2="]  # as they stand
    with pytest.raises(ValueError, match=r"line 1: data\.prompt names 'question', but the row has 'q'"):
        prompts.from_lines(io.StringIO('{"q": "1+1"}\n'), config)
    by_difficulty = replace(config, data=DifficultyData(source=config.data, field="digits"))
    assert prompts.from_lines(io.StringIO(lines), by_difficulty)[0].prompt == held_out[0].prompt


def test_a_runs_own_field_may_be_called_prompt(tmp_path):
    """Then its rows are rows of the run, and not prompts as they stand; a line of text always is one."""
    rows = [{"prompt": f"{i}+1", "answer": str(i + 1)} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = FileData(
        path=str(tmp_path / "rows.jsonl"), prompt="Q: {prompt}\nA: ", few_shot=1, held_out_fraction=0.2
    )
    config = replace(tiny(tmp_path), data=data)
    asked = prompts.from_lines(io.StringIO('{"prompt": "7+1"}\n7+1\n'), config)
    expected = tasks.build(data).train[0].prompt
    shown = expected[: expected.rindex("Q: ")]
    assert shown.count("Q: ") == 1
    assert [p.prompt for p in asked] == [f"{shown}Q: 7+1\nA: ", "7+1"]


def test_a_presets_rows_are_asked_as_it_asks_with_and_without_an_answer(tmp_path):
    rows = [{"question": f"What is {i}+1?", "answer": f"Add.\n#### {i + 1}"} for i in range(20)]
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = PresetData("gsm8k", path=str(tmp_path / "gsm8k.jsonl"), few_shot=1, held_out_fraction=0.3)
    config = replace(tiny(tmp_path), data=data)
    problem = tasks.build(data).held_out[0]
    row = {"question": problem.metadata["question"], "answer": problem.metadata["answer"]}
    judged, asked = prompts.from_rows([("a", row), ("b", {"question": "1?"})], config)
    assert (judged.prompt, judged.answer) == (problem.prompt, problem.answer)
    assert (
        asked.answer == ""
        and asked.prompt.startswith(judged.prompt.partition("\n\n")[0])
        and "1?" in asked.prompt
    )


def test_rows_whose_prompt_is_no_text_are_the_runs(tmp_path):
    row = {"prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": "2"}}
    config = replace(tiny(tmp_path), data=PresetData("dapo17k", prompt="{problem}="))
    (found,) = prompts.from_rows([("a", row)], config)
    assert (found.prompt, found.answer) == ("1+1=", "2")


def test_rows_in_a_notebook(folder):
    """The run's own field is the question; its tokenizer reads the prompt that the run was trained on."""
    sampler = open_sampler(folder)
    asked = sampler([{"question": "3+4", "answer": 7}, "3+4=", {"prompt": "3+4="}], samples=1)
    assert [c.prompt for c in asked] == ["3+4="] * 3
    assert asked[0].reward is not None and asked[1].reward is None
    assert sampler({"question": "3+4"})[0].prompt == "3+4="
