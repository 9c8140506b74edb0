r"""Equivalence of expressions by computer algebra, inside a worker process with limits on time and memory.

Expressions are parsed by math-verify. Rational numbers are compared exactly, others to 50 digits relative to
their size, and expressions with variables at random points: an identity that holds there holds, and no
simplification has to be found. What that does not decide (inequalities that must be solved) is math-verify's
to say.

Imported by workers, so it must not import jax.
"""

import logging
import random
import re
from typing import Any

from grpo_jax.rewards.equivalence import RELATION, same
from grpo_jax.rewards.exact import TOLERANCE
from grpo_jax.rewards.normalise import Answer

DIGITS = 60
CLOSE = 1e-50
"""Relative difference of two values that are the same."""
NOTHING = 1e-100
"""What evaluation may leave of a zero."""
POINTS = 6
"""Random points at which expressions are compared."""

DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)")
PRODUCT = re.compile(r"(?<![_^\d{\\A-Za-z])\d+\s*(?=\()")
"""A number before a parenthesis; the parser takes 2(3) for a mixed number."""


class UnparseableGold(Exception):
    """The reference answer is no expression."""


def judge(gold: Answer, answer: Answer) -> str:
    """The verdict on two normalised answers: equal, different or unparseable gold."""
    try:
        return "equal" if same(gold, answer, same_expression) else "different"
    except UnparseableGold:
        return "unparseable gold"
    except RecursionError:
        return "different"


def can_parse(text: str) -> bool:
    """Whether a text is an expression."""
    return expression(text) is not None


def start() -> None:
    """Prepare a worker: imports and the parser's tables before the first judgement, and silence."""
    logging.disable(logging.CRITICAL)  # math-verify logs whole inputs
    judge(Answer(r"\sqrt{2}", ""), Answer(r"\frac{2}{\sqrt{2}}", ""))


def same_expression(gold_text: str, answer_text: str) -> bool:
    """Whether two expressions, equations or inequalities are the same."""
    gold, answer = expression(gold_text), expression(answer_text)
    if gold is None:
        raise UnparseableGold(gold_text)
    if answer is None or _letters(gold_text) != _letters(answer_text):
        return False
    if RELATION.search(gold_text) or RELATION.search(answer_text):
        return _same_relation(gold, answer)
    one_decimal = bool(DECIMAL.search(gold_text)) != bool(DECIMAL.search(answer_text))
    return _same_value(gold, answer, float(TOLERANCE) if one_decimal else CLOSE)


def _letters(text: str) -> set[str]:
    """What the parser does not see of variables: which are capitals, and primes: f' is not f."""
    return {*re.findall(r"[A-Z]", re.sub(r"\\[A-Za-z]+", "", text)), *re.findall(r"\w'+", text)}


def expression(text: str) -> Any:
    """The sympy object, decimals as exact fractions; None if the text is no expression."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    exact = DECIMAL.sub(lambda m: rf"\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}", text)
    exact = PRODUCT.sub(r"\g<0>\\cdot ", exact)
    # Its own normalisation would drop an m for metres from 3m.
    spelling = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=False, boxed="none", equations=False
    )
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling)
    found = parse(f"${exact}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    return found[0] if found else None


def _same_value(gold: Any, answer: Any, tolerance: float) -> bool:
    import sympy

    if not isinstance(gold, sympy.Expr) or not isinstance(answer, sympy.Expr):
        return _verify(gold, answer)
    names = _variables(gold) | _variables(answer)
    if not names:
        a, b = _at(gold, {}), _at(answer, {})
        if a is None or b is None:
            return gold == answer or _verify(gold, answer)
        if a.is_Rational and b.is_Rational:
            return bool(a == b or (tolerance > CLOSE and _close(a, b, tolerance)))
        return _close(a, b, tolerance)
    compared = 0
    for point in _points(names):
        a, b = _at(gold, point), _at(answer, point)
        if a is None or b is None or (a.is_real != b.is_real):
            continue
        if not _close(a, b, tolerance):
            return False
        compared += 1
    return compared >= POINTS // 2 or _verify(gold, answer)


def _same_relation(gold: Any, answer: Any) -> bool:
    """Whether lhs − rhs of one is a constant times that of the other, the sign right in inequalities."""
    import sympy

    less, greater = (sympy.StrictLessThan, sympy.LessThan), (sympy.StrictGreaterThan, sympy.GreaterThan)
    if not isinstance(gold, (sympy.Eq, *less, *greater)) or not isinstance(
        answer, (sympy.Eq, *less, *greater)
    ):
        return _verify(gold, answer)
    first, second = gold.lhs - gold.rhs, answer.lhs - answer.rhs
    names = _variables(first)
    if names != _variables(second) or not names:
        return False
    ratios = []
    for point in _points(names):
        a, b = _at(first, point), _at(second, point)
        if a is not None and b is not None and a != 0 and b != 0:
            ratios.append(a / b)
    if len(ratios) < POINTS // 2:
        return _verify(gold, answer)
    if not all(_close(ratio, ratios[0], CLOSE) for ratio in ratios):
        return False
    if isinstance(gold, sympy.Eq) or isinstance(answer, sympy.Eq):
        return type(gold) is type(answer)
    same_direction = isinstance(gold, less) == isinstance(answer, less)
    strict = (sympy.StrictLessThan, sympy.StrictGreaterThan)
    return isinstance(gold, strict) == isinstance(answer, strict) and bool((ratios[0] > 0) == same_direction)


def _variables(expr: Any) -> set[str]:
    return {symbol.name for symbol in expr.free_symbols} - {"i"}


def _points(names: set[str]) -> list[dict[str, Any]]:
    """Fixed random rationals, half of them positive, so that roots and logarithms stay real there.

    The last of each half are large, of either sign: |x - 10| is 10 - x near zero.
    """
    import sympy

    draws = random.Random(0)
    points = []
    for i in range(POINTS):
        low = 1 if i < POINTS // 2 else -2000
        span = {POINTS // 2 - 1: (30_000, 60_000), POINTS - 1: (-60_000, -30_000)}.get(i, (low, 2000))
        points.append({name: sympy.Rational(draws.randint(*span), 613) for name in sorted(names)})
    return points


def _at(expr: Any, point: dict[str, Any]) -> Any:
    """The value, a rational number or one of 60 digits, or None."""
    import sympy

    try:
        values = {**point, "i": sympy.I}
        value = expr.subs({symbol: values[symbol.name] for symbol in expr.free_symbols}).doit()
        value = value if value.is_Rational else value.evalf(DIGITS)
        return value if value.is_number and value.is_finite else None
    except (TypeError, ValueError, ArithmeticError, AttributeError, NotImplementedError):
        return None


def _close(a: Any, b: Any, tolerance: float) -> bool:
    size = max(abs(a), abs(b))
    if a == 0 or b == 0:
        return bool(size < NOTHING)
    return bool(abs(a - b) <= size * tolerance)


def _verify(gold: Any, answer: Any) -> bool:
    from math_verify import verify

    return verify(gold, answer, timeout_seconds=None)
