"""The calculator: exact arithmetic from text, and what it answers to whatever a model writes."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import environments
from grpo_jax.environments.arithmetic import MAX_CHARACTERS, calculate, written
from grpo_jax.environments.calculator import Calculator
from grpo_jax.types import Message, Problem

PROBLEM = Problem("37*85=", "3145", {"question": "37*85"})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("8-5-2", 1),
        ("8/4/2", 1),
        ("-3*-2", 6),
        ("2--3", 5),
        (" 1,080 / $12 ", 90),
        ("7×6÷3−4", 10),
        ("0.1+0.2", Fraction(3, 10)),
        (".5*4", 2),
        ("99999999999*99999999999", 9999999999800000000001),
        ("(" * 90 + "1" + ")" * 90, 1),
        ("-" * 199 + "1", -1),
    ],
)
def test_values_by_hand(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("", "unexpected end"),
        ("1/0", "division by zero"),
        ("1/(2-2)", "division by zero"),
        ("2**3", r"unexpected \*"),
        ("2^3", r"unexpected \^"),
        ("1+", "unexpected end"),
        ("1 2", "unexpected 2"),
        ("(1", r"a \( without its \)"),
        ("1)", r"unexpected \)"),
        ("__import__('os').system('true')", "unexpected _"),
        ("9" * (MAX_CHARACTERS + 1), "more than 200 characters"),
        ("1e9", "unexpected e"),
        ("١+١", "unexpected ١"),
        ("1\x00", "unexpected \x00"),
    ],
)
def test_what_is_no_arithmetic_is_said(expression, complaint):
    with pytest.raises(ValueError, match=complaint):
        calculate(expression)


expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: "({}{}{})".format(*parts)),
        inner.map(lambda text: f"(-{text})"),
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(expressions)
def test_it_agrees_with_python_on_fractions(expression):
    def python(text):
        import ast

        def value(node):
            match node:
                case ast.Constant(number):
                    return Fraction(number)
                case ast.UnaryOp(ast.USub(), inner):
                    return -value(inner)
            left, right = value(node.left), value(node.right)
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
            return left / right

        return value(ast.parse(text, mode="eval").body)

    try:
        expected = python(expression)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero"):
            calculate(expression)
        return
    assert calculate(expression) == expected


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_answered_and_soon(text):
    start = time.process_time()
    step = Calculator().step(0, f"<<{text}>>")
    assert step.answer is None or step.answer.role == "tool"
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(3145), "3145"),
        (Fraction(-7), "-7"),
        (Fraction(1, 3), "0.333333"),
        (Fraction(-5, 2), "-2.5"),
        (Fraction(-1, 10**9), "0"),
        (Fraction(10**12 * 3 + 1, 3), "1000000000000.333333"),
    ],
)
def test_results_are_written_as_people_do(value, text):
    assert written(value) == text


def test_a_call_is_answered_and_anything_else_is_the_last_word():
    calculator = Calculator()
    state = calculator.reset(PROBLEM)
    state, answer = calculator.step(state, "That is <<2+2>> or <<37*85>>")
    assert (state, answer) == (1, Message("tool", "3145\n"))
    assert calculator.step(state, "<<1/0>>").answer == Message("tool", "error: division by zero\n")
    for last in ("3145", "<<37*85>> = 3145", "37*85>>", "<<37*85", ""):
        assert calculator.step(state, last) == (1, None)


def test_its_notation_is_a_matter_of_options():
    options = {"opening": "<calc>", "closing": "</calc>", "result": "<result>{result}</result>"}
    calculator = environments.build("calculator", options)
    assert calculator.stop_strings == ("</calc>",)
    assert calculator.step(0, "<calc>1+1</calc>").answer == Message("tool", "<result>2</result>")
    assert calculator.demonstrate(PROBLEM) == ("<calc>37*85</calc>", "3145")


class Mute:
    """No environment: it has no step."""

    stop_strings = ()

    def reset(self, problem):
        return None


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("calculater", {}, r"rollout\.environment: 'calculater' is not known. Did you mean 'calculator'"),
        ("calculator", {"open": "<"}, r"rollout\.environment_options: .* of 'calculator': got an unexpected"),
        ("calculator", {"opening": ""}, "opening is empty"),
        ("calculator", {"result": "ok"}, "expected a text with {result} in it"),
        ("tests.environments.test_calculator:Mute", {}, "gives a Mute, expected .* it has no step"),
        ("", {"opening": "<"}, r"there is no rollout\.environment"),
    ],
)
def test_wrong_names_and_options_are_errors(name, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        environments.build(name, options)
