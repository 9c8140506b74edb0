r"""The judge of mathematical answers: extract, normalise, compare; in doubt, no reward.

What was decided where it could be otherwise: a percentage equals its number with or without the sign (35 %
is 35, and also 0.35); a unit may be left off but not be another; an interval may be written as an
inequality; a list needs no braces and has no order; a decimal stands for a fraction or a root if it agrees
to six digits, and two decimals must be the same number; a box that was never closed holds no answer; a last
box outweighs those before it; an expression equals its value, so a problem that is itself an expression (37+48)
is answered by repeating it: for bare arithmetic take `number_match` or `exact_match`.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from typing import Any

from grpo_jax.rewards import math_worker
from grpo_jax.rewards.equivalence import parse, same, unread
from grpo_jax.rewards.exact import too_large
from grpo_jax.rewards.extraction import Mode, final_answer
from grpo_jax.rewards.judged import Judged
from grpo_jax.rewards.normalise import Answer, key, normalise
from grpo_jax.rewards.pool import Limits, OutOfBounds, Pool
from grpo_jax.tasks.boxed import last_boxed
from grpo_jax.tasks.splitting import shorten
from grpo_jax.types import Problem

MAX_CHARACTERS = 3_000
"""Characters of a longest answer, before it is normalised."""


class Verdict(StrEnum):
    """What the judge says; only `equal` is paid."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NO_ANSWER = "no answer"
    UNPARSEABLE_GOLD = "unparseable gold"
    TIMEOUT = "timeout"


class _Undecided(Exception):
    """Needs computer algebra."""


def math(problem: Problem, completion: str, *, mode: Mode = "lenient") -> float | None:
    """1 if the completion's final answer is mathematically the reference; None if that can not be read."""
    return pay(judge(completion, problem.answer, mode=mode))


def math_all(
    problems: Sequence[Problem], completions: Sequence[str], *, mode: Mode = "lenient"
) -> list[float | None]:
    """`math` of many completions at once, in parallel."""
    return [pay(v) for v in judge_all(completions, [problem.answer for problem in problems], mode=mode)]


def pay(verdict: Verdict) -> Judged | None:
    """The reward for a verdict. A gold that can not be parsed says nothing about the completion."""
    return None if verdict is Verdict.UNPARSEABLE_GOLD else Judged(verdict is Verdict.EQUAL, verdict)


def judge(completion: str, gold: str, *, mode: Mode = "lenient") -> Verdict:
    """The verdict on one completion."""
    return judge_all([completion], [gold], mode=mode)[0]


def judge_all(completions: Sequence[str], golds: Sequence[str], *, mode: Mode = "lenient") -> list[Verdict]:
    """The verdicts on many completions; what needs computer algebra is shared among worker processes."""
    verdicts = [_judge_text(c, g, mode) for c, g in zip(completions, golds, strict=True)]
    open_pairs = [verdict for verdict in verdicts if isinstance(verdict, tuple)]
    unique = list(dict.fromkeys(open_pairs))
    answers = dict(zip(unique, _workers().map(math_worker.judge, unique), strict=True)) if unique else {}
    return [_verdict(answers[v]) if isinstance(v, tuple) else v for v in verdicts]


def unparseable_golds(golds: Iterable[str]) -> list[int]:
    """Indices of reference answers that the judge can not use; to be reported when problems are loaded."""
    bad, texts = [], []
    for i, gold in enumerate(golds):
        answer = _gold(gold)
        if _usable(answer):
            texts += [(i, text) for text in unread(parse(answer.text))]
        else:
            bad.append(i)
    read = _workers().map(math_worker.can_parse, [(text,) for _, text in texts]) if texts else []
    return sorted({*bad, *(i for (i, _), parsed in zip(texts, read, strict=True) if parsed is not True)})


def check_golds(problems: Sequence[Problem]) -> Iterator[tuple[int, str]]:
    """Which reference answers can not be read."""
    for i in unparseable_golds([problem.answer for problem in problems]):
        yield i, f"the answer {shorten(problems[i].answer)!r} is no mathematical answer"


def _judge_text(completion: str, gold: str, mode: Mode) -> Verdict | tuple[Answer, Answer]:
    """The verdict, or the two answers if only computer algebra can tell."""
    reference = _gold(gold)
    if not _usable(reference):
        return Verdict.UNPARSEABLE_GOLD
    written = final_answer(completion, mode)
    if written is None:
        return Verdict.NO_ANSWER
    if written == gold.strip():
        return Verdict.EQUAL
    answer = normalise(written) if len(written) <= MAX_CHARACTERS else Answer("", "")
    if not answer.text:
        return Verdict.NO_ANSWER
    if key(answer) == key(reference) and (
        answer.unit == reference.unit or not answer.unit or not reference.unit
    ):
        return Verdict.EQUAL
    if too_large(answer.text):
        return Verdict.DIFFERENT
    try:
        return Verdict.EQUAL if same(reference, answer, _undecided) else Verdict.DIFFERENT
    except _Undecided:
        return (reference, answer)


@cache
def _gold(text: str) -> Answer:
    boxed, _ = last_boxed(text)
    written = boxed or text.rpartition("####")[2]
    return normalise(written) if len(written) <= MAX_CHARACTERS else Answer("", "")


def _usable(gold: Answer) -> bool:
    return any(c.isalnum() for c in gold.text) and too_large(gold.text) is None


def _undecided(gold: str, answer: str) -> bool:
    raise _Undecided


def _verdict(result: Any) -> Verdict:
    if isinstance(result, OutOfBounds):
        return Verdict.TIMEOUT
    if isinstance(result, Exception):  # computer algebra failed on what the model wrote
        return Verdict.DIFFERENT
    return Verdict(result)


def start() -> None:
    """Start the workers, or say what is missing."""
    _workers()


@cache
def _workers() -> Pool:
    if find_spec("math_verify") is None:
        raise ValueError("reward math: there is no module math_verify: pip install 'grpo_jax[math]'.")
    return Pool(limits=Limits(), initializer=math_worker.start)
