"""Worked examples: as text or as turns, of problems that are then neither trained on nor evaluated on."""

import json

import pytest

from grpo_jax.config import ArithmeticData, Component, DifficultyData, FileData, MixtureData, PresetData
from grpo_jax.tasks import build
from grpo_jax.tasks.presets import PRESETS
from grpo_jax.types import Message


def questions(count, name="q"):
    return [{"question": f"{name}{i}?", "answer": f"{i}", "why": f"because {i}"} for i in range(count)]


def file_data(tmp_path, rows, **fields):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return FileData(str(tmp_path / "rows.jsonl"), prompt="{question}\n", held_out_fraction=0.3, **fields)


def shown_in(prompt):
    """The lines of examples, as question and answer, and what is asked."""
    *examples, asked = prompt.split("\n\n")
    return [tuple(example.split("\n")) for example in examples], asked


def test_text_examples_come_before_every_prompt_and_are_trained_on_no_more(tmp_path):
    plain = build(file_data(tmp_path, questions(40)))
    split = build(file_data(tmp_path, questions(40), few_shot=2, few_shot_answer="{why}: {answer}"))
    (examples,) = {tuple(shown_in(problem.prompt)[0]) for problem in (*split.train, *split.held_out)}
    used = [question for question, _ in examples]
    assert len(set(used)) == 2
    assert all(answer == f"because {q[1:-1]}: {q[1:-1]}" for q, answer in examples)
    asked = [shown_in(problem.prompt)[1].strip() for problem in split.train]
    assert sorted([*asked, *used]) == sorted(problem.prompt.strip() for problem in plain.train)
    assert [shown_in(p.prompt)[1] for p in split.held_out] == [p.prompt for p in plain.held_out]
    again = build(file_data(tmp_path, questions(40), few_shot=2, few_shot_answer="{why}: {answer}"))
    assert again.train == split.train


def test_in_a_chat_examples_are_turns_after_the_system_message(tmp_path):
    split = build(file_data(tmp_path, questions(20), few_shot=1, system_prompt="Be brief."))
    for problem in split.train:
        system, question, answer, asked = problem.prompt
        assert system == Message("system", "Be brief.") and asked.role == "user"
        assert (question.role, answer.role) == ("user", "assistant")
        assert question.content == f"q{answer.content}?\n" and asked.content != question.content


def test_text_that_a_tokenizer_will_make_a_chat_gets_turns_too(tmp_path):
    data = file_data(tmp_path, questions(20), few_shot=1)
    assert isinstance(build(data).train[0].prompt, str)
    assert [turn.role for turn in build(data, chat=True).train[0].prompt] == ["user", "assistant", "user"]


def test_messages_of_a_file_keep_their_own_turns(tmp_path):
    rows = [
        {"turns": [{"role": "system", "content": "S"}, {"role": "user", "content": f"{i}?"}], "answer": i}
        for i in range(9)
    ]
    split = build(file_data(tmp_path, rows, messages_field="turns", few_shot=1))
    assert {tuple(turn.role for turn in problem.prompt) for problem in split.train} == {
        ("system", "user", "assistant", "user")
    }


def test_examples_are_never_held_out_even_where_overlap_is_allowed(tmp_path):
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, questions(17))))
    data = file_data(
        tmp_path,
        questions(20),
        few_shot=2,
        held_out_path=str(tmp_path / "held.jsonl"),
        allow_overlap=True,
    )
    with pytest.warns(UserWarning, match="17 held-out prompts are also training problems"):
        split = build(data)
    assert {q for q, _ in shown_in(split.train[0].prompt)[0]} <= {"q17?", "q18?", "q19?"}
    with (
        pytest.warns(UserWarning),
        pytest.raises(
            ValueError, match=r"data\.few_shot is 3, expected .* fewer than the 3 training problems"
        ),
    ):
        build(FileData(**{**vars(data), "few_shot": 3}))


def test_components_have_their_own_examples_and_overlap_is_still_seen(tmp_path):
    few, none = (
        ArithmeticData(size=200, max_digits=1, few_shot=2),
        ArithmeticData(size=200, operations=("-",)),
    )
    split = build(MixtureData((Component(few), Component(none))))
    kinds = {("+" in p.prompt, p.prompt.count("\n\n")) for p in (*split.train, *split.held_out)}
    assert kinds == {(True, 2), (False, 0)}
    assert sum(len(pool) for pool in split.mixture.pools) == len(split.train)
    leaky = ArithmeticData(size=200, max_digits=1, held_out_fraction=0.5)
    with pytest.raises(ValueError, match="held-out prompts are also training problems"):
        build(MixtureData((Component(few), Component(leaky))))


def test_strata_have_examples_too():
    split = build(DifficultyData(ArithmeticData(size=200, few_shot=1), field="carries", weights=(1.0,)))
    assert all(problem.prompt.count("\n\n") == 1 for problem in split.train)


def test_presets_answer_in_the_form_they_ask_for(tmp_path):
    rows = [{"problem": f"Q{i}?", "answer": str(i)} for i in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = PresetData("math500", path=str(tmp_path / "rows.jsonl"), held_out_fraction=0, few_shot=1)
    assert r"\boxed{" in build(data).train[0].prompt.split("\\boxed{}")[1]
    assert all("{" in preset.example_answer for preset in PRESETS.values())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"few_shot": -1}, r"data\.few_shot is -1, expected at least 0"),
        (
            {"few_shot": 1, "few_shot_answer": "{reason}"},
            r"data\.few_shot_answer names 'reason', but the row has",
        ),
        ({"few_shot": 1, "few_shot_answer": "{"}, r"data\.few_shot_answer '{'"),
    ],
)
def test_wrong_examples_are_errors(tmp_path, fields, says):
    with pytest.raises(ValueError, match=says):
        build(file_data(tmp_path, questions(20), **fields))
