"""Between text and ids: what was written is never encoded again, and every token has one author."""

import numpy as np
import pytest

from grpo_jax.environments import Step, conversations
from grpo_jax.environments import build as build_environment
from grpo_jax.environments.calculator import Calculator
from grpo_jax.models.tokenizers import CharacterTokenizer, TransformersTokenizer
from grpo_jax.types import InputError, Message, Problem
from tests.models.tiny_tokenizers import EOT, IM_END, IM_START, LLAMA_STYLE, QWEN_STYLE, build

PROBLEM = Problem("37*85=", "3145", {"question": "37*85"})
CHARACTERS = CharacterTokenizer()


def test_a_demonstration_is_a_conversation_whose_answers_are_not_learnt():
    ids, learnt = conversations.demonstration(Calculator(), PROBLEM, CHARACTERS, limit=20)
    assert CHARACTERS.decode(ids) == "<<37*85>>3145\n3145" and ids[-1] == CHARACTERS.eos_id
    own = "".join(CHARACTERS.decode([id]) for id, mine in zip(ids, learnt, strict=True) if mine)
    assert own == "<<37*85>>3145" and learnt[-1]
    assert learnt == [True] * 9 + [False] * 5 + [True] * 5


class Interrupter:
    """Ends every conversation at once, and demonstrates two turns nevertheless."""

    stop_strings = ()

    def reset(self, problem):
        return None

    def step(self, state, text):
        return Step(state, None)

    def demonstrate(self, problem):
        return "a", "b"


def test_demonstrations_that_cannot_be_are_errors():
    with pytest.raises(InputError, match="has 2 turns, but turn 1, 'a', ends the conversation"):
        conversations.demonstration(Interrupter(), PROBLEM, CHARACTERS, limit=20)
    with pytest.raises(InputError, match="max_completion_length: got 18, but a demonstration has 19 tokens"):
        conversations.demonstration(Calculator(), PROBLEM, CHARACTERS, limit=18)
    with pytest.raises(InputError, match="no expression in the field 'question'"):
        conversations.demonstration(Calculator(), Problem("37*85=", "3145"), CHARACTERS, limit=20)


def test_every_conversation_has_a_state_of_its_own():
    class Counter(Interrupter):
        def reset(self, problem):
            return int(problem.answer)

        def step(self, state, text):
            return Step(state + 1, Message("user", f"{state}{text}"))

    problems = [Problem("p", str(n)) for n in (10, 20)]
    reply = conversations.reply_with(Counter(), problems, CHARACTERS)
    heard = [CHARACTERS.decode(reply(n, CHARACTERS.encode_completion("x"))) for n in (0, 1, 0, 1, 1)]
    assert heard == ["10x", "20x", "11x", "21x", "22x"]


def test_an_answer_that_is_no_message_is_an_error():
    class Texting(Interrupter):
        def step(self, state, text):
            return Step(state, "408")

    with pytest.raises(
        InputError, match="step answered '408', expected a Message, whose content is text, or None at the end"
    ):
        conversations.reply_with(Texting(), [PROBLEM], CHARACTERS)(0, [5])


def test_turns_and_the_part_that_is_judged():
    ids, learnt = map(np.array, conversations.demonstration(Calculator(), PROBLEM, CHARACTERS, limit=20))
    assert conversations.turns(ids, learnt, CHARACTERS.decode) == (
        Message("assistant", "<<37*85>>"),
        Message("environment", "3145\n"),
        Message("assistant", "3145"),
    )
    assert CHARACTERS.decode(conversations.judged_ids(ids, learnt)) == "3145"
    whole = conversations.judged_ids(ids, np.ones_like(learnt))
    np.testing.assert_array_equal(whole, ids)


@pytest.mark.parametrize("template", [QWEN_STYLE, LLAMA_STYLE])
@pytest.mark.parametrize("content", ["408", "hello <|im_end|> <|eot|>", "\ue000"])
def test_in_a_chat_the_ids_are_those_of_the_whole_conversation(template, content):
    """Prompt, turn and reply in a row are what the template makes of all messages together."""
    tokenizer = TransformersTokenizer(build(template=template), chat=True)
    prompt, turn, reply = (Message("user", "hi"),), Message("assistant", "hello"), Message("tool", content)
    turn_ids = tokenizer.encode_completion(turn.content)
    said = [*tokenizer.encode_prompt(prompt), *turn_ids, *tokenizer.encode_reply(prompt, turn_ids, reply)]
    assert said == tokenizer.encode_prompt((*prompt, turn, reply))


def test_a_turn_that_a_text_stopped_is_ended_as_the_template_does():
    tokenizer = TransformersTokenizer(build(template=QWEN_STYLE), chat=True)
    turn_ids = tokenizer.encode_text("<<1+1>>")
    assert IM_END not in turn_ids
    ids = tokenizer.encode_reply("hi", turn_ids, Message("tool", "2"))
    assert ids[0] == IM_END and ids.count(IM_START) == 2
    assert tokenizer.encode_reply("hi", [*turn_ids, IM_END], Message("tool", "2")) == ids[1:]


class Caller(Interrupter):
    """Its turns end with a control token, which it must be told of: text leaves control tokens out."""

    stop_strings = ("<|eot|>", "</call>")
    heard: tuple[str, ...] = ()

    def step(self, state, text):
        self.heard += (text,)
        return Step(state, Message("tool", "2") if text.endswith(self.stop_strings) else None)

    def demonstrate(self, problem):
        return "say 1+1<|eot|>", "1+1</call>", "2"


def test_a_turn_that_a_control_token_ended_is_heard_with_it():
    tokenizer, caller = TransformersTokenizer(build()), Caller()
    reply = conversations.reply_with(caller, [PROBLEM], tokenizer)
    said = tokenizer.encode_text("hello")
    assert (
        reply(0, [*said, EOT]) and reply(0, [*said, tokenizer.stop_ids[0]]) is None and reply(0, said) is None
    )
    assert caller.heard == ("hello<|eot|>", "hello", "hello")


def test_a_demonstrated_turn_ends_with_the_control_token_itself():
    """Its characters would be learnt otherwise, which stop nothing."""
    tokenizer = TransformersTokenizer(build())
    ids, learnt = conversations.demonstration(Caller(), PROBLEM, tokenizer, limit=60)
    first, last = tokenizer.encode_text("say 1+1"), tokenizer.encode_completion("2")
    assert ids[: len(first) + 1] == [*first, EOT] and learnt[: len(first) + 2] == [True] * (
        len(first) + 1
    ) + [False]
    assert ids[-len(last) :] == last and ids.count(EOT) == 1


def test_a_stop_string_of_the_run_ends_a_demonstrated_turn_too():
    ids, _ = conversations.demonstration(Calculator(), PROBLEM, CHARACTERS, limit=20, stop_strings=("45",))
    assert CHARACTERS.decode(ids) == "<<37*85>>3145\n3145" and CHARACTERS.eos_id not in ids


def test_in_plain_text_a_reply_is_its_content():
    tokenizer = TransformersTokenizer(build(template=QWEN_STYLE))
    assert tokenizer.encode_reply("37*85=", [9], Message("tool", "hello")) == tokenizer.encode_text("hello")
    assert CHARACTERS.encode_reply("37*85=", [9], Message("tool", "A\n")) == [37, 3]


def test_a_template_that_forgets_what_was_said_is_refused():
    forgetful = TransformersTokenizer(build(template="{{ messages[-1]['content'] }}<|im_end|>"), chat=True)
    with pytest.raises(ValueError, match="leaves out what was said before"):
        forgetful.encode_reply("hi", [9], Message("tool", "2"))


def failing(step=None, reset=None, demonstrate=None):
    class Mistaken(Interrupter):
        def reset(self, problem):
            return reset() if reset else None

        def step(self, state, text):
            return step()

        def demonstrate(self, problem):
            return demonstrate()

    return Mistaken()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (failing(step=lambda: 1 / 0), "failed after the turn 'a': ZeroDivisionError"),
        (failing(reset=lambda: {}["x"]), "failed after the turn 'a': KeyError"),
        (failing(step=lambda: None), r"step gave None, expected a Step"),
        (failing(step=lambda: Step(0, "7")), "step answered '7', expected a Message, whose content is text"),
        (failing(step=lambda: Step(0, Message("tool", 7))), "expected a Message, whose content is text"),
        (
            failing(step=lambda: Step(0, Message("narrator", "7"))),
            "rollout.environment: step answered with the role 'narrator', expected one of tool, user",
        ),
    ],
)
def test_a_mistake_of_an_environment_s_is_named(environment, message):
    reply = conversations.reply_with(environment, [PROBLEM], CHARACTERS)
    with pytest.raises(InputError, match=message):
        reply(0, CHARACTERS.encode_text("a"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: None, "gave None"),
        (lambda: (), r"gave \(\)"),
        (lambda: "ab", "gave 'ab'"),
        (lambda: 1 / 0, "failed: Zero"),
    ],
)
def test_a_mistake_in_what_an_environment_demonstrates_is_named(given, message):
    with pytest.raises(InputError, match=f"rollout.environment: demonstrate {message}"):
        conversations.demonstration(failing(demonstrate=given), PROBLEM, CHARACTERS, limit=20)


@pytest.mark.parametrize("stops", [None, 5, "=", ("",), (5,)])
def test_stop_strings_are_texts(monkeypatch, stops):
    monkeypatch.setattr(Interrupter, "stop_strings", stops)
    with pytest.raises(ValueError, match="stop_strings \\(a sequence of texts\\)"):
        build_environment(f"{__name__}:Interrupter", {})
    with pytest.raises(ValueError, match="failed: ZeroDivisionError"):
        build_environment(f"{__name__}:divide", {})


def divide():
    return 1 / 0
