"""The judge of programs: what it takes for the program, what it takes for tests, and whom it pays."""

import gzip
import json
import re

import pytest

pytest.importorskip("pebble")

from grpo_jax.config import RewardFunction
from grpo_jax.rewards import code, scoring
from grpo_jax.rewards.code import code_all, extract_program, find_tests
from grpo_jax.rewards.code_worker import Cases, UnitTests
from grpo_jax.rewards.pool import Limits, Pool
from grpo_jax.types import Problem
from tests.shared import shared

PROMPT = 'def double(x):\n    """Twice x."""\n'
DOUBLE = Problem(
    PROMPT,
    "    return 2 * x",
    {
        "prompt": PROMPT,
        "entry_point": "double",
        "test": "def check(f):\n    assert f(2) == 4\n    assert f(-1) == -2",
    },
)
REVERSE = Problem(
    "Reverse each line.",
    "",
    {"input_output": json.dumps({"inputs": ["ab\n", "x\n"], "outputs": ["ba\n", "x"]})},
)
ADD = Problem(
    "Add.", "", {"test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(1, 1) == 2"]}
)


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    try:
        code.start()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("completion", "problem", "program"),
    [
        ("    return 2 * x", DOUBLE, PROMPT + "    return 2 * x"),
        (
            "```python\ndef double(x):\n    return 2 * x\n```",
            DOUBLE,
            PROMPT + "\n\ndef double(x):\n    return 2 * x\n",
        ),
        ("So:\n```py\nx = 1\n```\nor\n```\nx = 2\n```\n", ADD, "x = 2\n"),
        ("```python\ndef double(x): return 1\n```\nUse:\n```\nprint(double(2))\n```", DOUBLE, None),
        ("<think>```\nx = 1\n```</think>x = 3", ADD, "x = 3"),
        ("", ADD, ""),
        ("x" * 200_000, ADD, ""),
    ],
)
def test_the_program_within_a_completion(completion, problem, program):
    found = extract_program(completion, problem)
    if program is None:
        assert found is not None and "def double(x): return 1" in found and "print" not in found
    else:
        assert found == (program or None)


def test_the_tests_within_a_problem():
    assert find_tests(DOUBLE).entry_point == "double" and "check(double)" in find_tests(DOUBLE).tests[0]
    assert find_tests(REVERSE) == Cases(("ab\n", "x\n"), ("ba\n", "x"))
    assert find_tests(Problem("?", "", {"test_cases": [{"input": "1", "output": "2"}]})) == Cases(
        ("1",), ("2",)
    )
    setup = {"test_list": ["assert f()"], "test_setup_code": "x = 1", "test_imports": ["import math"]}
    assert find_tests(Problem("?", "", setup)) == UnitTests("import math\nx = 1", ("assert f()",))


@pytest.mark.parametrize(
    "metadata", [{}, {"test": "x"}, {"input_output": {"inputs": ["1"], "outputs": []}}, {"test_cases": []}]
)
def test_a_problem_without_tests_is_an_error_not_a_wrong_answer(metadata):
    (result,) = code_all([Problem("?", "", metadata)], ["print(1)"])
    assert isinstance(result, ValueError) and re.search("has no tests|as many inputs as outputs", str(result))


def test_pays_for_right_programs_only():
    judged = [
        (DOUBLE, "    return 2 * x", 1),
        (DOUBLE, "    return x * x", 0),
        (DOUBLE, "```python\ndef double(x):\n    return x + x\n```", 1),
        (DOUBLE, "I can not do this.", 0),
        (DOUBLE, "", 0),
        (REVERSE, "```python\nprint(input()[::-1])\n```", 1),
        (REVERSE, "print(input())", 0),
        (REVERSE, "print(input()[::-1]); raise ValueError", 0),
        (ADD, "def add(a, b): return a + b", 1),
        (ADD, "def add(a, b): return 2 * b", 0),
    ]
    problems, completions, values = zip(*judged, strict=True)
    assert code_all(problems, completions) == list(values)


def test_partial_credit_is_the_share_of_tests():
    half = [REVERSE, ADD, DOUBLE]
    programs = ["print(input())", "def add(a, b): return 2 * b if b else 0", "    return x * x"]
    assert code_all(half, programs, partial_credit=True) == pytest.approx([1 / 2, 2 / 3, 0])


def test_a_program_that_outlasts_its_worker_is_wrong_and_ends_no_run(monkeypatch):
    """Many cases that each sleep for as long as they may are longer than a worker has."""
    code.start()
    pool = Pool(limits=Limits(cpu_seconds=60, wall_seconds=3), workers=1)
    monkeypatch.setattr(code, "_workers", lambda: pool)
    try:
        assert code_all([REVERSE], ["import time; time.sleep(60)"], partial_credit=True) == [0]
    finally:
        pool.close()


def test_is_a_reward_whose_sandbox_is_tested_when_it_is_built(monkeypatch):
    (reward,) = scoring.build([RewardFunction("code", options={"partial_credit": True})])
    scores = scoring.score(
        problems=[ADD] * 2,
        completions=["def add(a, b): return a + b", "x"],
        rewards=[reward],
        on_failure="error",
    )
    assert scores.total.tolist() == [1, 0]

    def refuse():
        raise ValueError("no sandbox here")

    monkeypatch.setitem(scoring.BUILTINS, "code", scoring.Batched(code_all, start=refuse))
    with pytest.raises(ValueError, match="no sandbox here"):
        scoring.build([RewardFunction("code")])


@pytest.mark.slow
def test_human_eval_canonical_solutions_pass_and_a_mutant_of_each_fails():
    with gzip.open(shared("data/human_eval.jsonl.gz"), "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 164
    problems = [Problem(row["prompt"], row["canonical_solution"], row) for row in rows]
    right = code_all(problems, [row["canonical_solution"] for row in rows])
    assert [row["task_id"] for row, value in zip(rows, right, strict=True) if value != 1] == []
    mutants = [f"    return (lambda x: (x, None))({row['entry_point']}.__name__)\n" for row in rows]
    assert code_all(problems, mutants) == [0] * 164
    subtle = [mutated(row["canonical_solution"]) for row in rows]
    changed = [i for i, row in enumerate(rows) if subtle[i] != row["canonical_solution"]]
    survived = sum(code_all([problems[i] for i in changed], [subtle[i] for i in changed]))
    assert len(changed) > 120 and survived <= 0.1 * len(changed)


def mutated(solution):
    """One small change: the last comparison, number or operator is another."""
    for pattern, other in (
        (r"<=", "<"),
        (r"==", "!="),
        (r"\b1\b", "2"),
        (r"\b0\b", "1"),
        (r" \+ ", " - "),
        (r"<", ">="),
    ):
        matches = list(re.finditer(pattern, solution))
        if matches:
            match = matches[-1]
            return solution[: match.start()] + other + solution[match.end() :]
    return solution


TWO_SUM = Problem(
    "Two indices of numbers that add up to the target, and the count of calls so far.",
    "",
    {
        "entry_point": "Solution.twoSum",
        "method_cases": [
            {"input": "[2, 7, 11]\n9\n", "output": "[0, 1]"},
            {"input": "[3, 3]\n6", "output": "[0, 1]"},
        ],
    },
)
TWO_SUM_RIGHT = """```python
class Solution:
    def twoSum(self, nums: List[int], target: int) -> List[int]:
        self.seen = getattr(self, "seen", {})
        for i, number in enumerate(nums):
            if target - number in self.seen:
                return self.seen[target - number], i
            self.seen[number] = i
```"""


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (TWO_SUM_RIGHT, 1),
        (TWO_SUM_RIGHT.replace("target - number in", "target in"), 0),
        (TWO_SUM_RIGHT.replace("class Solution", "class Other"), 0),
        ("```python\ndef twoSum(nums, target): return [0, 1]\n```", 0),
        ("```python\nclass Solution:\n    def twoSum(self, *_): return {0, 1}\n```", 0),
        (
            "```python\nimport json\njson.loads = lambda *_: 1\nclass Solution:\n    def twoSum(self, *_): ...\n```",
            0,
        ),
        ("", 0),
    ],
    ids=["right", "wrong", "another class", "a function", "no JSON", "replaces json here", "nothing"],
)
def test_a_method_of_a_class_is_called_with_each_case_s_arguments(completion, reward):
    assert code_all([TWO_SUM], [completion]) == [reward]


def test_some_cases_of_a_method_may_pay_in_part():
    completion = "```python\nclass Solution:\n    def twoSum(self, nums, target): return [0, 1] if target == 9 else []\n```"
    assert code_all([TWO_SUM], [completion], partial_credit=True) == [0.5]


def test_assertions_may_use_a_class():
    problem = Problem(
        "Twice.", "", {"test_list": ["assert Twice().of(2) == 4", "assert Twice.of(self=None, x=1) == 2"]}
    )
    program = "class Twice:\n    def of(self, x): return 2 * x"
    assert code_all([problem], [program], partial_credit=True) == [1.0]
