r"""Numbers read exactly, as fractions; and bounds on what may be evaluated at all.

Bounds come first: nothing that is too long, too deep or too large to compute goes any further.
Imported by workers, so it must not import jax.
"""

import re
from fractions import Fraction
from typing import NamedTuple

MAX_CHARACTERS = 1_000
MAX_DEPTH = 24
MAX_DIGITS = 200
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 1_000

TOLERANCE = Fraction(1, 10**6)
"""Relative, and only where one side is a decimal and the other is not one: 0.333333 for 1/3."""

INTEGER = r"[-+]?\d+"
DECIMAL = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
GROUP = rf"\{{\s*({DECIMAL})\s*\}}"
NUMBERS = {
    "plain": rf"()({DECIMAL})",
    "mixed": r"(-?)(\d+)(?:\s+(\d+)/(\d+)|\s*\\frac\{(\d+)\}\{(\d+)\})",
    "ratio": rf"(-?)\(?({DECIMAL})\s*/\s*({DECIMAL})\)?",
    "fraction": rf"(-?)\s*\\frac\s*{GROUP}\s*{GROUP}",
    "power": rf"()({DECIMAL})\s*(?:\\(?:times|cdot)\s*10\^(?:\{{\s*({INTEGER})\s*\}}|(\d))|[eE]({INTEGER}))",
}
NUMBERS = {name: re.compile(pattern, re.ASCII) for name, pattern in NUMBERS.items()}


class Number(NamedTuple):
    """An exact value, and whether it was written as a decimal."""

    value: Fraction
    decimal: bool


def too_large(text: str) -> str | None:
    """Why a text must not be evaluated, or None. Linear in a text of bounded length."""
    if len(text) > MAX_CHARACTERS:
        return f"longer than {MAX_CHARACTERS} characters"
    depth = deepest = 0
    for c in text:
        depth += (c in "{([") - (c in "})]")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    if any(len(run) > MAX_DIGITS for run in re.findall(r"\d+", text)):
        return f"a number of more than {MAX_DIGITS} digits"
    if re.search(r"!\s*[)}\]]*\s*!|[)}\]]\s*!", text) or any(
        int(n) > MAX_FACTORIAL for n in re.findall(r"(\d+)\s*!", text)
    ):
        return f"a factorial of more than {MAX_FACTORIAL}"
    return next((reason for exponent in exponents(text) if (reason := _exponent_too_large(exponent))), None)


def exponents(text: str) -> list[str]:
    """What stands after each ^, braces or parentheses taken off."""
    found = []
    for match in re.finditer(r"\^\s*", text):
        rest = text[match.end() :]
        end = _group_end(rest)
        found.append(rest[1 : end - 1] if rest[:1] in "{(" and end > 1 else rest[:end])
    return found


def _exponent_too_large(exponent: str) -> str | None:
    numbers = [int(n) for n in re.findall(r"\d+", exponent)]
    if any(n > MAX_EXPONENT for n in numbers):
        return f"an exponent of more than {MAX_EXPONENT}"
    if "^" not in exponent and "!" not in exponent:
        return None
    small = re.fullmatch(r"(\d{1,2})\^\{?(\d{1,2})\}?", exponent)
    if small and int(small[1]) ** int(small[2]) <= MAX_EXPONENT:
        return None
    has_variable = re.search(r"(?<![\\A-Za-z])[a-df-z](?![A-Za-z])", exponent)
    return (
        None if has_variable and exponent.count("^") == 1 and "!" not in exponent else "a tower of exponents"
    )


def _group_end(text: str) -> int:
    """Length of the first braced or parenthesised group, command, or character."""
    if text[:1] in ("{", "("):
        depth = 0
        for i, c in enumerate(text):
            depth += (c in "{(") - (c in "})")
            if depth == 0:
                return i + 1
        return len(text)
    match = re.match(r"\\[A-Za-z]+|.", text)
    return match.end() if match else 0


def number(text: str) -> Number | None:
    """The exact value of an integer, decimal, fraction, mixed number or power of ten."""
    for form, pattern in NUMBERS.items():
        if match := pattern.fullmatch(text.strip()):
            sign, *parts = (part for part in match.groups() if part is not None)
            value = _number_value(form, parts)
            decimal = form in ("plain", "power") and "." in parts[0]
            return None if value is None else Number(-value if sign else value, decimal)
    return None


def _number_value(form: str, parts: list[str]) -> Fraction | None:
    if form == "plain":
        return Fraction(parts[0])
    if form == "power":
        power = int(parts[1])
        return Fraction(parts[0]) * Fraction(10) ** power if abs(power) <= MAX_EXPONENT else None
    *whole, top, bottom = map(Fraction, parts)
    return sum(whole, top / bottom) if bottom else None


def same_number(gold: Number, answer: Number) -> bool:
    """Exact, except that a decimal may stand for a fraction that has no end."""
    if gold.value == answer.value:
        return True
    if gold.decimal == answer.decimal or (_terminates(gold.value) and _terminates(answer.value)):
        return False
    return abs(gold.value - answer.value) <= TOLERANCE * abs(gold.value)


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
