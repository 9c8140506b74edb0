"""Rows to problems: templates, answers as people write them, and errors that say which row."""

from decimal import Decimal

import pytest

from grpo_jax.tasks.rows import Mapper, as_text
from grpo_jax.types import Message

ROW = {"question": "How many?", "answer": "So 18.\n#### 1,080 ", "n": 7.0}


def one(mapper, row):
    return next(mapper.problems([("file:3", row)]))


def test_template_and_pattern():
    mapper = Mapper(prompt="{question} ({n}) {{}}\n", answer_field="answer", answer_pattern=r"####\s*(.+)")
    problem = one(mapper, ROW)
    assert problem.prompt == "How many? (7) {}\n" and problem.answer == "1,080"
    assert problem.metadata["location"] == "file:3" and problem.metadata["n"] == 7.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.0, "7"),
        (-1.0, "-1"),
        (0.5, "0.5"),
        (3, "3"),
        ("3.0", "3.0"),
        (1e22, "1" + "0" * 22),
        (b"ab", "ab"),
        (Decimal("2.50"), "2.50"),
        (Decimal("4.0"), "4"),
        (["x"], "x"),
        (True, "True"),
    ],
)
def test_values_as_people_write_them(value, text):
    assert as_text(value, "f") == text


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), [1, 2], {"a": 1}])
def test_values_that_are_no_answer(value):
    with pytest.raises(ValueError, match=r"field 'f' is .*, expected text or a number"):
        as_text(value, "f")


def test_nested_answer_field():
    mapper = Mapper(prompt="{q}", answer_field="reward_model.ground_truth")
    assert one(mapper, {"q": "?", "reward_model": {"ground_truth": "34"}}).answer == "34"


def test_chat_from_messages_and_from_a_system_prompt():
    turns = [{"role": "user", "content": "Hi"}]
    chat = Mapper(prompt="", answer_field="a", messages_field="turns", system_prompt="Be brief.")
    expected = (Message("system", "Be brief."), Message("user", "Hi"))
    assert one(chat, {"turns": turns, "a": "1"}).prompt == expected
    text = Mapper(prompt="{q}", answer_field="a", system_prompt="Be brief.")
    assert one(text, {"q": "Hi", "a": "1"}).prompt == expected
    own = [{"role": "system", "content": "Be long."}, *turns]
    assert one(chat, {"turns": own, "a": "1"}).prompt[0].content == "Be long."


@pytest.mark.parametrize(
    ("mapper", "row", "says"),
    [
        (Mapper("{body} {question}", "answer"), ROW, "'body', but the row has 'question', 'answer', 'n'"),
        (Mapper("{question}", "solution"), ROW, "no field 'solution'; the row has 'question'"),
        (Mapper("{question}", "answer", r"final: (\d+)"), ROW, "data.answer_pattern .* does not match"),
        (
            Mapper("{question}", "answer"),
            {"question": "q", "answer": " "},
            "answer in field 'answer' is empty",
        ),
        (Mapper("{question}", "answer"), {"question": None, "answer": "1"}, "field 'question' is None"),
        (Mapper("{question}", "answer"), {"question": " ", "answer": "1"}, "the prompt is empty"),
        (Mapper("", "a", messages_field="m"), {"m": [{"role": "user"}], "a": "1"}, "list of {role, content}"),
        (Mapper("", "a", messages_field="m"), {"m": [], "a": "1"}, "list of {role, content}"),
    ],
)
def test_a_bad_row_says_where_and_why(mapper, row, says):
    with pytest.raises(ValueError, match=f"^file:3: .*{says}"):
        one(mapper, row)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"prompt": "{question"}, "data.prompt .*literal brace twice"),
        ({"prompt": "\\boxed{}"}, "data.prompt .*not a field name"),
        ({"prompt": "{a.__class__}"}, "data.prompt .*not a field name"),
        ({"prompt": "{a:>5}"}, "data.prompt .*not a field name"),
        ({"answer_pattern": "("}, "data.answer_pattern .*not a regular expression"),
        ({"answer_pattern": "####"}, "data.answer_pattern .*has no group"),
    ],
)
def test_a_bad_setting_is_found_before_any_row(fields, says):
    with pytest.raises(ValueError, match=says):
        Mapper(**{"prompt": "{q}", "answer_field": "a", **fields})
