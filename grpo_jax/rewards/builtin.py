"""Rewards that compare text and numbers: no processes, no evaluation of what the model wrote.

A reward is called as `reward(problem, completion, **options)` and returns a number, or None where it does
not apply. A reference answer that a reward cannot use is never a reason to pay: it gives None or an error.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from grpo_jax.types import Problem

MAX_CHARACTERS = 100_000
"""Longer completions are judged by their last part, which bounds the time of every search."""

# Commas only where thousands have them, so that "1,2" is two numbers. A minus after a digit, letter or
# closing bracket is an operator. Digits and exponents are bounded, so that a number is never large to hold.
NUMBER = re.compile(
    r"""
    (?<![0-9]) (?<![0-9]\.)                                # not inside another number
    (?P<sign> (?<![\w)\]}]) (?<![0-9)\]}][ ]) [-+−] [ ]? )?
    (?: \\? [$€£] [ ]? )?
    (?P<number>
        (?: [0-9]{1,3} (?: ,[0-9]{3} )+ (?![0-9]) | [0-9]{1,400} ) (?: \.[0-9]{1,400} )?
        | (?<!\.) \.[0-9]{1,400}
    )
    (?: [eE] (?P<exponent> [-+]?[0-9]{1,3} ) (?![0-9]) )?
    (?: / (?P<denominator> [0-9]{1,400} ) (?![0-9./]) )?
    """,
    re.VERBOSE,
)


def exact_match(problem: Problem, completion: str) -> float | None:
    """1 if completion and answer are the same text, up to white space around them."""
    reference = problem.answer.strip()
    return float(completion.strip() == reference) if reference else None


def number_match(problem: Problem, completion: str) -> float:
    """1 if the last number in the completion is exactly the answer.

    "1,080", "$1080", "1080.00" and "1080%" are the same number, 0.5 and 1/2 too; no tolerance.
    """
    reference = only_number(problem.answer)
    if reference is None:
        raise ValueError(f"the answer {problem.answer!r} is not a number; judge it with another reward")
    return float(last_number(completion) == reference)


def check_numbers(problems: Sequence[Problem]) -> Iterator[tuple[int, str]]:
    """Which reference answers are no numbers."""
    for i, problem in enumerate(problems):
        if only_number(problem.answer) is None:
            yield i, f"the answer {problem.answer[:100]!r} is not a number; judge it with another reward"


def last_number(text: str) -> Fraction | None:
    """The last number in a text."""
    numbers = list(NUMBER.finditer(text[-MAX_CHARACTERS:]))
    return _value(numbers[-1]) if numbers else None


def only_number(text: str) -> Fraction | None:
    """The number a text consists of."""
    match = NUMBER.fullmatch(re.sub(r"\\?%$", "", text.strip()).rstrip())
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Fraction | None:
    denominator = int(match["denominator"] or 1)
    if not denominator:
        return None
    value = Fraction(match["number"].replace(",", "")) * Fraction(10) ** int(match["exponent"] or 0)
    return (-value if match["sign"] and match["sign"][0] in "-−" else value) / denominator
