r"""The judge of mathematics: right, never fooled, never hanging."""

import resource
import threading
import time

import pytest

pytest.importorskip("math_verify")

from grpo_jax.config import RewardFunction
from grpo_jax.rewards import math_worker, scoring
from grpo_jax.rewards.math import Verdict, judge, judge_all, math, unparseable_golds
from grpo_jax.rewards.normalise import normalise
from grpo_jax.rewards.pool import Limits, OutOfBounds, Pool
from grpo_jax.types import Problem

TOWER = r"\frac{6^{(6^{(6^{(6^6)})}-4)}-1}{5}"


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", True),
        (r"3\sqrt[3]{2}", r"\sqrt[3]{54}", True),
        ("x^2-x-2", "(x+1)(x-2)", True),
        ("x^2+1", "x^2+2x+1", False),
        ("|x|", "x", False),
        ("1", r"\sin^2 x+\cos^2 x", True),
        (r"3\ln 2", r"\ln 8", True),
        ("-1", r"e^{i\pi}", True),
        ("3+4i", "3-4i", False),
        ("2x-y+1=0", "y=2x+1", True),
        ("y=2x-1", "y=2x+1", False),
        ("x>3", "2x>6", True),
        ("x>3", "-x>-3", False),
        (r"x \ge 3", "2x>6", False),
        ("3", "n=3k", False),
        (r"2\pi", "6.283185307", True),
        (r"\pi", "3.14", False),
        ("6", "2(3)", True),
        ("5", "5 tenths", False),
        ("3", "3 fifths", False),
        ("5", r"5\text{ hundredths}", False),
        ("5", "5 quadrillion", False),
        ("20", "20 three", False),
        ("5", r"\boxed{5 less than x}", False),
        ("5", r"\boxed{5 point seven}", False),
        ("5", r"\boxed{5 apples minus three}", False),
        ("|x-10|", "10-x", False),
        ("|x+20|", "x+20", False),
        ("y=|x-5|", "y=5-x", False),
        ("f'(x)", "f(x)", False),
        ("y'", "y", False),
        ("f'+g", "f+g'", False),
        ("3", "3m", False),
        ("R^2", "r^2", False),
        (r"\infty", r"-\infty", False),
        ("2^{2025}", r"2\cdot 2^{2024}", True),
        ("0", r"\frac{1}{0}", False),
        ("0", r"\sqrt{2}\sqrt{3}-\sqrt{6}", True),
    ],
)
def test_algebra(gold, answer, equal):
    assert judge(answer, gold) is (Verdict.EQUAL if equal else Verdict.DIFFERENT)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{3^{61}}", r"\frac{1}{3^{60}}"),
        ("10^{30}", "10^{30}+1"),
        ("0", "10^{-40}"),
        ("1:30", "12:30"),
        (r"4\sqrt{2}", "4"),
        ("e^{-201}", "e^{-200}"),
    ],
)
def test_fault_63_near_numbers_are_not_equal(gold, answer):
    assert judge(answer, gold) is Verdict.DIFFERENT


@pytest.mark.parametrize("gold", ["", "$$", r"\boxed{}", "  ", "{}", "1" * 5000, TOWER])
@pytest.mark.parametrize("completion", ["", "7", "$$", r"\boxed{}"])
def test_fault_60_a_gold_that_says_nothing_pays_nobody(gold, completion):
    assert judge(completion, gold) is Verdict.UNPARSEABLE_GOLD
    assert math(Problem("?", gold), completion) is None


def test_golds_that_cannot_be_read_are_found_at_load_time():
    golds = ["5", r"\frac{1}{2}", "Tuesday", "", r"\frac{", "x+1", r"\sqrt{", "$$", "(1, \\pi)"]
    assert unparseable_golds(golds) == [3, 4, 6, 7]


def test_fault_58_any_thread_may_ask_and_gets_the_same():
    verdicts = {}

    def ask(name):
        verdicts[name] = judge_all([r"\sqrt{8}", r"\exp(\exp(\exp(\exp(5))))"], [r"2\sqrt{2}", "1"])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert verdicts == {i: [Verdict.EQUAL, Verdict.TIMEOUT] for i in range(2)}


def test_fault_59_a_tower_in_a_fraction_ends_at_once():
    start = time.monotonic()
    assert judge(TOWER, "11") is Verdict.DIFFERENT
    assert time.monotonic() - start < 1


def hostile_strings():
    """Two hundred texts that have hung, crashed or fooled judges."""
    yield from ("^".join(["9"] * n) for n in range(3, 13))
    yield from ("9" + "^{9" * n + "}" * n for n in range(2, 12))
    yield from (f"{n}" + "!" * k for n in (9, 99, 10**6, 10**9) for k in (1, 2, 3))
    yield from ("(" * n + "10" + "!)" * n for n in range(2, 12))
    yield from (c * 10**6 for c in "{}()[]\\$^_!-+.,;:1x")
    yield from (c * 300 + "1" + d * 300 for c, d in ("{}", "()", "[]", "||"))
    yield from (r"\frac{" * n + "1" + "}{2}" * n for n in (5, 20, 50, 300))
    yield from (r"\sqrt{" * n + "2" + "}" * n for n in (5, 20, 300))
    yield from (
        r"\begin{pmatrix}" + r"\\".join(["&".join(["1"] * n)] * n) + r"\end{pmatrix}" for n in (9, 30, 300)
    )
    yield from (r"\boxed{" * n for n in (1, 100, 10**5))
    yield from ("+".join(["x"] * n) for n in (50, 400, 10**5))
    yield from (f"(x+y+z+1)^{{{n}}}" for n in (10, 400, 9999, 10**6))
    yield from (f"{c}7{c}" for c in "\x00\x01\x1b\u202e\u200b\u2066\ufeff\ud800\udfff\U0001f642\u0660")
    yield from (
        f"{a}{b}"
        for a in ("__import__('os').system('id')", "exec('1')", "().__class__", "lambda:1")
        for b in ("", "#7")
    )
    yield from (rf"\exp({'(' * n}10^{{{n}}}{')' * n})" for n in range(1, 9))
    yield from (rf"\sum_{{k=1}}^{{{10**n}}} k^k" for n in range(4, 9))
    yield from (rf"\int_0^{n} \sin(x^x) \cos(e^x) dx" for n in range(1, 4))
    yield from (rf"\prod_{{k=1}}^{{{10**n}}} k" for n in range(3, 7))
    yield from (rf"\lim_{{x\to 0}} x^{{{n}}}\sin(1/x)" for n in range(3))
    yield from (f"{n}e{n}" for n in (9, 999, 99999, 10**9))
    yield from (f"1/{'0' * n}" for n in (1, 5, 150))
    yield from ("1," * n + "1" for n in (50, 150, 400, 10**5))
    yield from (rf"\{{{','.join(map(str, range(n)))}\}}" for n in (90, 200, 2000))
    yield from ("12" * n for n in (99, 100, 101, 5000))
    yield from (r"\text{" * n + "7" + "}" * n for n in (1, 10, 1000))
    yield from ("7 " + word * 2000 for word in ("or 8 ", "and ", "= ", "< ", r"\cup ", r"\pm "))
    yield from (rf"\log_{{{base}}} 2" for base in ("0", "1", "-1", "{}", "9^9"))
    yield from (
        rf"\operatorname{{{name}}}(7)" for name in ("os", "eval", "exit", "open", "lambda", "__class__")
    )
    yield from (
        rf"\{name}{{7}}" for name in ("input", "write18", "include", "def", "catcode", "loop", "csname")
    )
    yield from ("7" + c * 5000 for c in (" ", "\n", "\t", "'", "%", "~", "&"))
    yield from (rf"\sin({'9' * n})" for n in (10, 100, 190))
    yield from (rf"\sqrt[{n}]{{2}}" for n in (0, -1, 10**6))
    yield from (f"x^{n} = {n}^x" for n in (2, 99, 9999))
    yield from (f"{'-' * n}7" for n in (2, 3, 50, 400))
    yield from ("0." + "3" * n for n in (150, 250, 5000))
    yield from (rf"\binom{{{10**n}}}{{{10**n // 2}}}" for n in range(3, 9))


@pytest.mark.slow
def test_hostile_strings_each_end_within_their_limit_and_leave_nothing():
    """None hangs, none is paid for 7.5, workers are replaced, and the parent's memory stays flat."""
    texts = list(dict.fromkeys(hostile_strings()))
    assert len(texts) >= 200
    judge(r"\sqrt{2}", r"\frac{2}{\sqrt{2}}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest = 0.0
    for text in texts:
        start = time.monotonic()
        verdict = judge(rf"\boxed{{{text}}}", "7.5")
        slowest = max(slowest, time.monotonic() - start)
        assert verdict in (Verdict.DIFFERENT, Verdict.NO_ANSWER, Verdict.TIMEOUT), text[:80]
    assert slowest < Limits().wall_seconds + 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    assert judge(r"\sqrt{8}", r"2\sqrt{2}") is Verdict.EQUAL


@pytest.mark.slow
def test_ten_thousand_ordinary_judgements_a_minute():
    """Of ten answers seven are numbers, three need algebra; every text is judged for the first time."""
    pairs = []
    for i in range(200):
        pairs += [(f"The answer is {i * k}.", str(i * k + i % 2)) for k in range(1, 8)]
        pairs += [(rf"\boxed{{\frac{{\sqrt{{{i + 2}}}}}{{{i + 2}}}}}", rf"\frac{{1}}{{\sqrt{{{i + 2}}}}}")]
        pairs += [(f"(x+{i})(x-{i})", f"x^2-{i * i}"), (rf"\boxed{{{i}\pi}}", rf"\pi\cdot {i + 1}")]
    judge(r"\sqrt{2}", r"\frac{2}{\sqrt{2}}")
    start = time.monotonic()
    verdicts = judge_all(*zip(*pairs, strict=True))
    per_minute = len(pairs) / (time.monotonic() - start) * 60
    assert verdicts.count(Verdict.EQUAL) == 1100
    assert per_minute > 10_000, per_minute


@pytest.fixture(scope="module")
def pool():
    pool = Pool(limits=Limits(cpu_seconds=0.5, wall_seconds=3, memory_bytes=1 << 30), workers=2)
    yield pool
    pool.close()


def test_a_pool_survives_whatever_a_job_does(pool):
    """The jobs are text, so that workers need not import this module."""
    jobs = ["while True: pass", "import time; time.sleep(60)", "bytearray(8 << 30)", "import os; os._exit(3)"]
    assert all(isinstance(result, OutOfBounds) for result in pool.map(exec, [(job,) for job in jobs]))
    assert isinstance(pool.map(exec, [("int('x')",)])[0], ValueError)
    assert pool.map(eval, [("6 * 7",)] * 8) == [42] * 8


def test_a_verdict_depends_on_processor_time_not_on_the_clock(pool):
    """Half a second of work is allowed; sleeping for longer than that is not work."""
    assert pool.map(time.sleep, [(1.5,)]) == [None]


def test_workers_import_neither_jax_nor_the_main_module():
    pool = Pool(limits=Limits(), workers=1, initializer=math_worker.start)
    try:
        pool.map(math_worker.judge, [(normalise("x+1"), normalise("1+x"))])
        seen = pool.map(
            eval, [(f"{name!r} in __import__('sys').modules",) for name in ("sympy", "jax", "pytest")]
        )
    finally:
        pool.close()
    assert seen == [True, False, False]  # pytest is the main module here


def test_is_a_reward_with_options():
    rewards = scoring.build(
        [RewardFunction("math"), RewardFunction("math", options={"mode": "strict"}, weight=0.5)]
    )
    problems = [Problem("?", r"\frac{1}{2}")] * 3
    completions = [r"\boxed{0.5}", "the answer is 1/2", "2"]
    scores = scoring.score(problems=problems, completions=completions, rewards=rewards, on_failure="error")
    assert scores.rewards.tolist() == [[1, 1], [1, 0], [0, 0]] and scores.total.tolist() == [1.5, 1, 0]
    with pytest.raises(ValueError, match="unexpected keyword argument 'modes'"):
        scoring.build([RewardFunction("math", options={"modes": "strict"})])


def test_a_gold_that_cannot_be_read_is_shown():
    with pytest.raises(ValueError, match="answer: '\\$\\$'"):
        scoring.score(
            problems=[Problem("?", "$$")],
            completions=["5"],
            rewards=scoring.build([RewardFunction("math")]),
            on_failure="error",
        )


def test_the_worker_itself_tells_the_three_verdicts():
    assert math_worker.judge(normalise("x+1"), normalise("1+x")) == "equal"
    assert math_worker.judge(normalise("x+1"), normalise("x+2")) == "different"
    assert math_worker.judge(normalise(r"\frac{"), normalise("x+2")) == "unparseable gold"
