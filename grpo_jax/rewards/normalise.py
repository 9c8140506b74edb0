r"""A mathematical answer in one spelling: `\dfrac12`, `½` and `1/2` are the same text afterwards.

Text in, text out; nothing is evaluated. Worker processes import this module, so it must not import jax.
"""

import re
import unicodedata
from typing import NamedTuple

SYMBOLS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/",
    "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "√": r"\sqrt",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ", "²": "^2", "³": "^3", "→": r"\to ",
}  # fmt: skip

POWERS = {
    word: rf"\times 10^{{{power}}}"
    for word, power in {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}.items()
}

SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|biggl?|biggr|displaystyle|limits|nolimits)(?![A-Za-z])", ""),
        (r"\\(?:geqslant|geq)(?![A-Za-z])|>=", r"\\ge "),
        (r"\\(?:leqslant|leq)(?![A-Za-z])|<=", r"\\le "),
        (r"\\(?:neq)(?![A-Za-z])|!=", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])|\\lparen(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])|\\rparen(?![A-Za-z])", ")"),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:!|,(?=\d{3}))|\{,\}(?=\d)|\{\}", lambda m: "," if m[0] == "{,}" else ""),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~", " "),
        (r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?|\\degree(?![A-Za-z])", r"\\text{ degrees}"),
        (r"\\boxed|\\fbox|\\framebox", ""),
        (r"\*\*", "^"),
        (r"(?<!\\)\bsqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\sqrt\s*([A-Za-z0-9])", r"\\sqrt{\1}"),
        (r"\\frac\s*([0-9A-Za-z])\s*([0-9A-Za-z])(?![A-Za-z])", r"\\frac{\1}{\2}"),
        (r"\\frac\s*([0-9A-Za-z])\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"(?<![\\A-Za-z])(?:infinity|inf|oo)(?![A-Za-z])", r"\\infty "),
        (r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi "),
        (r"\\(?:bmod|mod|pmod)(?![A-Za-z])", r"\\pmod "),
        (r"([\^_])\s*\{\s*(\w)\s*\}", r"\1\2"),
        (r"\*", r"\\cdot "),
        (r"(?i)(?<=\d)\s*\\text\s*\{\s*(hundred|thousand|million|billion|trillion)s?\b", r" \1 \\text{"),
        (r"(?i)(?<=\d) *\b(hundred|thousand|million|billion|trillion)s?\b *", lambda m: POWERS[m[1].lower()]),
        (r"\\text\s*\{\s*\}", ""),
        (r"(?i)\s*(?:\\text\s*\{\s*(?:or|and)\s*\}|(?<![\\A-Za-z])(?:or|and)(?![A-Za-z]))\s*", ", "),
    )
]

TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname)\s*\{([^{}]*)\}"
)
UNITS = {
    "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "meter metre",
    "km": "km kilometer kilometre", "in": "in inch inches", "ft": "ft feet foot", "mi": "mi mile",
    "yd": "yd yard", "g": "gram", "kg": "kg kilogram", "mg": "mg milligram", "lb": "lb pound",
    "oz": "oz ounce", "s": "sec second", "min": "min minute", "h": "hr hour",
    "day": "day", "km/h": "km/h kmh kph", "mi/h": "mph mi/h", "degree": "deg degree",
    "rad": "rad radian", "dollar": "usd dollar", "cent": "cent", "person": "person people", "": "unit",
}  # fmt: skip
UNIT_OF = {spelling: unit for unit, spellings in UNITS.items() for spelling in spellings.split()}
KNOWN = "|".join(f"{re.escape(spelling)}s?" for spelling in sorted(UNIT_OF, key=len, reverse=True))

COUNTED = (
    r"dozens?|score|gross|grand|lakhs?|crores?|googol|\w+illions?|half|halves|thirds?|quarters?|fourths?|fifths?|"
    r"sixths?|sevenths?|eighths?|ninths?|tenths?|elevenths?|twelfths?|\w+teenths?|\w+tieths?|hundredths?|"
    r"thousandths?|\w+illionths?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|"
    r"thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand"
)
"""Words that make another number of the one before them: 5 tenths is not 5."""
ARITHMETIC = (
    r"plus|minus|times|divided|over|choose|factorial|squared|cubed|percent|point|root|sqrt|into|remainder|doubled|"
    rf"tripled|negative|than|below|versus|otherwise|unless|when|{COUNTED}"
)

# A unit is marked as text, or is a word that can be no product of variables.
UNIT = re.compile(
    r"""^(?P<value> .* (?: [\d)}] | \\pi) ) \s*
    (?: \\(?:text|mathrm|textrm|mbox|textbf) \s* \{ \s* (?! [A-Za-z ]* \b (?:COUNTED) \b )
            (?P<marked> [A-Za-zµ/ .]+? ) \.? \s* \}
      | (?P<plain> (?: (?:square|sq\.?|cubic)[ ] )? (?: KNOWN )
                 | (?<=\s) (?! [A-Za-z ]* \b (?:ARITHMETIC) \b ) [A-Za-z]{4,} (?: [ ][A-Za-z]+ )* ) )
    \s* (?: \^ \s* \{? \s* (?P<power> [23] ) \s* \}? )? $""".replace("KNOWN", KNOWN)
    .replace("ARITHMETIC", ARITHMETIC)
    .replace("COUNTED", COUNTED),
    re.VERBOSE | re.IGNORECASE,
)
PERCENT = re.compile(r"\s*(?:\\?%|(?:\\text\s*\{\s*)?per\s?cent(?:age)?\s*\}?)$", re.IGNORECASE)
CURRENCY = re.compile(r"^(?P<sign>-?)\s*(?:\\\$|[$£€])\s*(?=[-\d.\\])")
THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")


class Answer(NamedTuple):
    """A normalised answer: the text without its unit, and the unit, in one spelling each."""

    text: str
    unit: str


def normalise(raw: str) -> Answer:
    """One spelling of an answer."""
    text = _unwrap(_plain(raw))
    for pattern, replacement in SPELLINGS:
        text = pattern.sub(replacement, text)
    text, unit = _split_unit(_unwrap(text.strip()))
    text = TEXT.sub(lambda m: m[1], text)
    text = re.sub(r"\\(?:textbf|mathbf|text)\s+", "", text)
    text = THOUSANDS.sub(lambda m: m[1].replace(",", ""), text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"^\+\s*(?=[\d.\\])", "", text)
    if choice := re.fullmatch(r"\(\s*([A-Za-z])\s*\)", text):
        text = choice[1]
    return Answer(text=_outer_braces(text), unit=unit)


def key(answer: Answer) -> str:
    """What two answers are compared by as text: spacing counts between digits only, case in formulas only."""
    text = re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", answer.text)
    return text.lower() if is_words(answer.text) else text


def is_words(text: str) -> bool:
    """Whether this is language rather than mathematics: nothing but words, one of three letters or more."""
    return bool(re.fullmatch(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*\.?", text)) and bool(
        re.search(r"[^\W\d_]{3}", text)
    )


def _plain(raw: str) -> str:
    """Without control and direction characters, and with symbols as LaTeX."""
    text = re.sub(r"(?<=\d)[¼-¾⅐-⅞]", lambda m: " " + m[0], raw)  # a mixed number keeps its parts apart
    text = "".join(SYMBOLS.get(c, c) for c in text)
    text = unicodedata.normalize("NFKC", text.encode("utf-8", "replace").decode())
    text = "".join(SYMBOLS.get(c, c) for c in text)
    categories = {"Cc": " ", "Cf": "", "Cs": " ", "Co": " ", "Cn": " "}
    return "".join(categories.get(unicodedata.category(c), c) for c in text)


def _unwrap(text: str) -> str:
    """Without mathematics delimiters, markdown, and the punctuation that ends a sentence."""
    while True:
        before = text
        text = text.strip().strip("`").strip()
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing):
                inside = text[len(opening) : -len(closing)]
                if opening not in inside and not inside.endswith("\\"):
                    text = inside
        text = re.sub(r"(?<=[^\\\s])[.,;:]+$", "", text)
        if text == before:
            return text


def _split_unit(text: str) -> tuple[str, str]:
    text = CURRENCY.sub(lambda m: m["sign"], text)
    if percent := PERCENT.search(text):
        return text[: percent.start()].strip(), "percent"
    if (match := UNIT.match(text)) is None:
        return text, ""
    words = (match["marked"] or match["plain"]).strip().lower()
    return match["value"].strip(), _unit(words, match["power"] or "")


def _unit(words: str, power: str) -> str:
    if shape := re.match(r"(square|sq\.?|cubic) ", words):
        words, power = words[shape.end() :], "3" if shape[1] == "cubic" else "2"
    singular = words if words in UNIT_OF else words.removesuffix("s")
    unit = UNIT_OF.get(singular, singular)
    return f"{unit}^{power}" if unit and power else unit


def _outer_braces(text: str) -> str:
    while text.startswith("{") and text.endswith("}"):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "{") - (c == "}")
            if depth == 0 and i < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text
