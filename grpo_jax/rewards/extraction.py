r"""The final answer within a completion.

Two modes. `strict` takes only what was marked as the answer: <answer>…</answer>, the last \boxed{…}, "####
…". `lenient` falls back on "the answer is …", on the last bold text, on the whole text where it is no prose,
and on the last number. In both, thinking up to </think> is no answer, and a last box that was never closed
means that there is none: the completion was cut off, and paying for half an answer would reward that.

Every search is linear in the text, which is bounded.
"""

import re
from typing import Literal

from grpo_jax.rewards.builtin import NUMBER
from grpo_jax.tasks.boxed import last_boxed

Mode = Literal["strict", "lenient"]

MAX_CHARACTERS = 20_000
"""Only the last part of a longer completion is searched."""
MAX_BARE = 300
"""Characters of the longest text that is an answer without any mark."""

ANSWER_IS = re.compile(r"answer(?:\s+is)?[ \t*]*(?::|=|\bis\b|(?<=is)(?=\s))[ \t:*]*(?=\S)", re.IGNORECASE)
BOLD = re.compile(r"\*\*([^*\n]{1,300})\*\*")
TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}")
# Two words of more than one letter side by side: a sentence, not a formula.
PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}[ \t]+[A-Za-z]{2,}(?![A-Za-z])")


def final_answer(completion: str, mode: Mode = "lenient") -> str | None:
    """The answer as written, or None if there is none."""
    text = _after_thinking(completion)
    marked, cut_off = _marked(text)
    if marked is not None or cut_off or mode == "strict":
        return marked
    for find in (_stated, _bare, _bold, _number):
        if answer := find(text):
            return answer
    return None


def marked_answer(completion: str) -> str | None:
    """The answer in strict mode."""
    return final_answer(completion, "strict")


def _after_thinking(completion: str) -> str:
    return completion[-MAX_CHARACTERS:].rpartition("</think>")[2].strip()


def _marked(text: str) -> tuple[str | None, bool]:
    """What was marked as the answer, and whether its box was cut off."""
    opening = text.rfind("<answer>")
    if opening >= 0 and (closing := text.find("</answer>", opening)) >= 0:
        inside = text[opening + len("<answer>") : closing].strip()
        boxed, _ = last_boxed(inside)
        return boxed or inside or None, False
    boxed, cut_off = last_boxed(text)
    if boxed is not None or cut_off:
        return boxed, cut_off
    if (mark := text.rfind("####")) >= 0:
        return text[mark:].lstrip("# ").partition("\n")[0].strip() or None, False
    return None, False


def _stated(text: str) -> str | None:
    statements = list(ANSWER_IS.finditer(text))
    if not statements:
        return None
    rest = text[statements[-1].end() :].partition("\n")[0][:MAX_BARE].strip()
    if rest.startswith("$") and (closing := rest.find("$", 1)) > 0:
        return rest[1:closing].strip() or None
    sentence = re.split(r"[.!?;](?:\s|$)|,\s", rest, maxsplit=1)[0].strip("* ")
    return sentence if not PROSE.search(TEXT.sub("", sentence)) else _number(sentence)


def _bare(text: str) -> str | None:
    short = 0 < len(text) <= MAX_BARE and "\n" not in text
    return text.strip("* ") if short and not PROSE.search(TEXT.sub("", text)) else None


def _bold(text: str) -> str | None:
    found = BOLD.findall(text)
    return found[-1].strip(" .:") if found else None


def _number(text: str) -> str | None:
    numbers = list(NUMBER.finditer(text))
    return numbers[-1][0] if numbers else None
