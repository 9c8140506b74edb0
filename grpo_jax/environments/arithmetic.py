"""Arithmetic from text by a parser of its own: what a model wrote is never evaluated as code.

    sum     := product (("+" | "-") product)*
    product := factor (("*" | "/") factor)*
    factor  := ("-" | "+") factor | number | "(" sum ")"

There are no powers, so a result has at most as many digits as the text that asks for it.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

MAX_CHARACTERS = 200
"""Of a longest expression; bounds digits, nesting and time."""

TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?|\.[0-9]+)|([-+*/()]))")
SAME = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", ",": None, "$": None})
"""Other ways to write the operators, and what people write inside numbers."""


def calculate(expression: str) -> Fraction:
    """The exact value of an expression.

    Raises:
        ValueError: it is too long, is no arithmetic, or divides by zero; the message is short enough to show a model.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"more than {MAX_CHARACTERS} characters")
    tokens = [*_tokens(expression.translate(SAME).strip()), ""]
    value, at = _sum(tokens, 0)
    if tokens[at]:
        raise ValueError(f"unexpected {tokens[at]}")
    return value


def written(value: Fraction) -> str:
    """A value as people write it: whole numbers whole, others to 6 decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(abs(value) * 10**6)
    whole, decimals = divmod(scaled, 10**6)
    return f"{'-' if value < 0 and scaled else ''}{whole}.{decimals:06}".rstrip("0").rstrip(".")


def _tokens(text: str) -> Iterator[str]:
    end = 0
    while end < len(text):
        match = TOKEN.match(text, end)
        if match is None:
            raise ValueError(f"unexpected {text[end:].lstrip()[0]}")
        end = match.end()
        yield match[1] or match[2]


def _sum(tokens: list[str], at: int) -> tuple[Fraction, int]:
    value, at = _product(tokens, at)
    while tokens[at] in ("+", "-"):
        other, after = _product(tokens, at + 1)
        value, at = (value + other if tokens[at] == "+" else value - other), after
    return value, at


def _product(tokens: list[str], at: int) -> tuple[Fraction, int]:
    value, at = _factor(tokens, at)
    while tokens[at] in ("*", "/"):
        other, after = _factor(tokens, at + 1)
        if tokens[at] == "/" and not other:
            raise ValueError("division by zero")
        value, at = (value * other if tokens[at] == "*" else value / other), after
    return value, at


def _factor(tokens: list[str], at: int) -> tuple[Fraction, int]:
    token = tokens[at]
    if token in ("+", "-"):
        value, at = _factor(tokens, at + 1)
        return (-value if token == "-" else value), at
    if token == "(":
        value, at = _sum(tokens, at + 1)
        if tokens[at] != ")":
            raise ValueError("a ( without its )")
        return value, at + 1
    if not token or token in "*/)":
        raise ValueError(f"unexpected {token or 'end'}")
    return Fraction(token), at + 1
