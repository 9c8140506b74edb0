r"""Whether two normalised answers are the same, without evaluating either.

The outer structure of an answer (tuple, interval, set, list, union, matrix, inequality, equation) is read
here and compared part by part. Numbers are compared exactly as fractions. What is neither is left to a
`leaf` function, which in the training process gives up and in a worker process calls a computer algebra
system (`math_worker`). Bounds come first: nothing that is too long, too deep or too large to compute reaches
either.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from grpo_jax.rewards.exact import number, same_number
from grpo_jax.rewards.normalise import Answer, is_words, key

MAX_PARTS = 100
SENTENCE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,} +[A-Za-z]{4,}(?![A-Za-z])")
INFINITE = (r"\infty", r"-\infty")
VARIABLE = r"\\?[A-Za-z]+(?:_\w|_\{\w+\})?"
ASSIGNMENT = re.compile(
    rf"^\s*(?P<name>{VARIABLE}|[A-Za-z]\s*\([A-Za-z, ]+\)|[A-Za-z][A-Za-z ]+)\s*=\s*(?P<value>[^=]+)$"
)
MEMBER = re.compile(rf"^\s*{VARIABLE}\s*\\in\s*(?=[\[(\\])")
RELATION = re.compile(r"(<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|(?<![<>!])=)")
OPAQUE = re.compile(r"\\equiv|\\pmod|\\mid(?![A-Za-z])|\d\s*:\s*\d|_\{?\d+\}?\s*$")
MATRIX = re.compile(
    r"^\\begin\{(?:[pbB]?matrix|array)\}(?:\{[clr|]*\})?(?P<body>.*)\\end\{(?:[pbB]?matrix|array)\}$",
    re.DOTALL,
)


class Part(NamedTuple):
    """An answer or a part of one. `kind` is leaf, collection, row, relation or equation."""

    kind: str
    text: str
    parts: tuple["Part", ...] = ()
    brackets: str = ""
    variable: str = ""


Leaf = Callable[[str, str], bool]
"""(gold, answer) -> whether two expressions are the same."""


def same(gold: Answer, answer: Answer, leaf: Leaf) -> bool:
    """Whether two answers that are not the same text are the same answer."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    return _same(parse(gold.text), parse(answer.text), leaf) or _same_percentage(gold, answer)


def _same_percentage(gold: Answer, answer: Answer) -> bool:
    """50 % is also 0.5; that it is also 50 was seen to before."""
    if (gold.unit == "percent") == (answer.unit == "percent"):
        return False
    a, b = number(gold.text), number(answer.text)
    if a is None or b is None:
        return False
    return a.value / 100 == b.value if gold.unit else a.value == b.value / 100


def parse(text: str) -> Part:
    """The outer structure of a normalised answer; "x ∈" before a set is left off."""
    text = MEMBER.sub("", text.strip())
    if OPAQUE.search(text):
        return Part("opaque", text)
    if match := MATRIX.match(text):
        rows = [
            tuple(parse(cell) for cell in split(row, "&"))
            for row in re.split(r"\\\\", match["body"])
            if row.strip()
        ]
        return Part("row", text, tuple(Part("row", "", row, "matrix") for row in rows), "matrix")
    if len(pieces := split(text, r"\cup")) > 1:
        return Part("collection", text, tuple(map(parse, pieces)))
    if (group := _enclosed(text)) and (group[0] == r"\{" or "," in group[1]):
        opening, inside, closing = group
        items = tuple(parse(item) for item in split(inside, ","))
        if opening == r"\{":
            return Part("collection", text, items, opening + closing)
        if len(items) > 1:
            return Part("row", text, items, opening + closing)
    if len(items := split(text, ",")) > 1:
        return Part("collection", text, tuple(parse(item) for item in items))
    if r"\pm" in text and text.count(r"\pm") == 1:
        both = tuple(parse(text.replace(r"\pm", sign).removeprefix("+")) for sign in "+-")
        return Part("collection", text, both)
    return _relation(text) or Part("leaf", text)


def _relation(text: str) -> Part | None:
    """An equation, an interval written as an inequality, or another relation."""
    pieces = [piece.strip() for piece in RELATION.split(text)]
    operators, sides = pieces[1::2], pieces[::2]
    if not operators or not all(sides):
        return None
    if operators == ["="]:
        return Part("equation", text, (Part("leaf", sides[0]), Part("leaf", sides[1])))
    up = {"<": ("(", ")"), r"\le": ("[", "]")}
    down = {">": "<", r"\ge": r"\le"}
    if all(operator in down for operator in operators):
        operators, sides = [down[operator] for operator in reversed(operators)], sides[::-1]
    if not all(operator in up for operator in operators):
        return Part("relation", text)
    if len(sides) == 2 and re.fullmatch(VARIABLE, sides[0]):
        sides, operators = [r"-\infty", *sides], ["<", *operators]
    elif len(sides) == 2 and re.fullmatch(VARIABLE, sides[1]):
        sides, operators = [*sides, r"\infty"], [*operators, "<"]
    if len(sides) != 3 or not re.fullmatch(VARIABLE, sides[1]):
        return Part("relation", text)
    brackets = up[operators[0]][0] + up[operators[1]][1]
    return Part("row", text, (parse(sides[0]), parse(sides[2])), brackets, variable=sides[1])


def _enclosed(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) if one pair of brackets encloses the whole; an interval's may differ."""
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return (r"\{", text[2:-2], r"\}") if r"\}" not in text[2:-2] else None
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]"):
        return None
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0:
            return (text[0], text[1:-1], text[-1]) if i == len(text) - 1 else None
    return None


def split(text: str, separator: str) -> list[str]:
    """Pieces between separators that stand outside all brackets."""
    pieces, depth, start, i = [], 0, 0, 0
    while i < len(text):
        if depth == 0 and text.startswith(separator, i):
            pieces.append(text[start:i].strip())
            i += len(separator)
            start = i
            continue
        depth += (text[i] in "([{") - (text[i] in ")]}")
        i += 1
    pieces.append(text[start:].strip())
    return pieces


def unread(part: Part) -> list[str]:
    """The texts in an answer that only computer algebra can read."""
    if part.kind in ("relation", "equation"):
        return [part.text]
    if part.kind == "leaf":
        text = part.text
        return [] if number(text) or is_words(text) or len(text) == 1 else [text]
    return [text for inner in part.parts for text in unread(inner)]


def _same(gold: Part, answer: Part, leaf: Leaf) -> bool:
    if len(gold.parts) > MAX_PARTS or len(answer.parts) > MAX_PARTS:
        return False
    kinds = {gold.kind, answer.kind}
    if kinds == {"leaf"}:
        return _same_leaf(gold.text, answer.text, leaf)
    if "opaque" in kinds:
        return re.sub(r"[\s{}]", "", gold.text) == re.sub(r"[\s{}]", "", answer.text)
    if "equation" in kinds:
        return _same_equation(gold, answer, leaf)
    if "relation" in kinds:
        return _plausible(gold.text) and _plausible(answer.text) and leaf(gold.text, answer.text)
    if kinds == {"row"}:
        same_variable = gold.variable == answer.variable or not gold.variable or not answer.variable
        return (
            gold.brackets == answer.brackets and same_variable and _in_order(gold.parts, answer.parts, leaf)
        )
    if kinds == {"collection"}:
        return _in_any_order(list(gold.parts), list(answer.parts), leaf)
    if kinds == {"row", "collection"}:
        # "3, 4" for (3, 4): the brackets were left off, the order counts.
        row, plain = (gold, answer) if gold.kind == "row" else (answer, gold)
        return row.brackets == "()" and plain.brackets == "" and _in_order(gold.parts, answer.parts, leaf)
    return False


def _same_equation(gold: Part, answer: Part, leaf: Leaf) -> bool:
    """Two equations, or "x = 5" and 5; but 3k is not 3 because n = 3k."""
    values = [ASSIGNMENT.match(part.text) if part.kind == "equation" else None for part in (gold, answer)]
    if gold.kind == answer.kind:
        if all(values) and len({re.sub(r"\s", "", match["name"]) for match in values if match}) == 1:
            return _same(*(parse(match["value"]) for match in values if match), leaf)
        return _plausible(gold.text) and _plausible(answer.text) and leaf(gold.text, answer.text)
    if not any(values) or "relation" in (gold.kind, answer.kind):
        return False
    return _same(*(parse(m["value"]) if m else p for m, p in zip(values, (gold, answer), strict=True)), leaf)


def _in_order(gold: tuple[Part, ...], answer: tuple[Part, ...], leaf: Leaf) -> bool:
    return len(gold) == len(answer) and all(_same(a, b, leaf) for a, b in zip(gold, answer, strict=True))


def _in_any_order(gold: list[Part], answer: list[Part], leaf: Leaf) -> bool:
    if len(gold) != len(answer):
        return False
    for part in gold:
        twin = next((other for other in answer if _same(part, other, leaf)), None)
        if twin is None:
            return False
        answer.remove(twin)
    return True


def _same_leaf(gold: str, answer: str, leaf: Leaf) -> bool:
    a, b = key(Answer(gold, "")), key(Answer(answer, ""))
    if a == b:
        return bool(a)
    if is_words(gold) or is_words(answer) or max(len(a), len(b)) == 1:
        return False
    first, second = number(gold), number(answer)
    if first is not None and second is not None:
        return same_number(first, second)
    if (first or a in INFINITE) and (second or b in INFINITE):
        return False
    return _plausible(gold) and _plausible(answer) and leaf(gold, answer)


def _plausible(text: str) -> bool:
    """Whether a text could be mathematics at all."""
    if SENTENCE.search(text):
        return False  # the parser would read its beginning: 5 point seven as 5
    return bool(re.fullmatch(r"[A-Za-z0-9\\{}()\[\]^_+\-*/.,=<>|!&' ]+", text)) and "__" not in text
