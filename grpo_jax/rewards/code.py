r"""The judge of programs: take it out of the completion, run it against the problem's tests in a sandbox.

What a problem's metadata must hold, one of:

- `test` and `entry_point` (HumanEval): a function `check(candidate)`; `prompt` is the code that the model continues.
- `test_list` (MBPP): assertions; `test_setup_code` and `test_imports` come before them.
- `method_cases` and `entry_point` (LiveCodeBench): a list of {"input": ..., "output": ...}, the arguments of a method
  as JSON, one a line, and what it returns; the entry point is Solution.METHOD.
- `input_output`: {"inputs": [...], "outputs": [...]}, as JSON or not: standard input and output.
- `test_cases`: a list of {"input": ..., "output": ...}, as JSON or not: the same.

If no sandbox keeps its promises on this machine, the run is refused before it starts.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from grpo_jax.rewards import code_worker, sandbox_probe
from grpo_jax.rewards.code_worker import Cases, UnitTests
from grpo_jax.rewards.pool import Limits, OutOfBounds, Pool
from grpo_jax.rewards.sandbox import GuestLimits
from grpo_jax.types import Problem

MAX_PROGRAM = 100_000
"""Characters of a longest program."""

METHOD_IMPORTS = (
    "".join(
        f"from {module} import *\n"
        for module in (
            "typing",
            "collections",
            "itertools",
            "functools",
            "heapq",
            "bisect",
            "math",
            "string",
            "operator",
        )
    )
    + "import bisect, collections, functools, heapq, itertools, math, random, re, string, sys\n"
)
"""What solutions of such problems take for granted, as where they are set."""

FENCE = re.compile(
    r"^[ \t]*```[ \t]*(?:python[0-9.]*|py)?[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE | re.IGNORECASE
)


def code_all(
    problems: Sequence[Problem],
    completions: Sequence[str],
    *,
    partial_credit: bool = False,
    cpu_seconds: int = 5,
    wall_seconds: float = 20.0,
    memory_megabytes: int = 512,
) -> list[float | Exception | None]:
    """1 if the program passes every test, else 0, or the share that it passes with `partial_credit`.

    The limits are those of one test, or of all tests of a list that call functions.
    """
    limits = GuestLimits(
        cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory_bytes=memory_megabytes << 20
    )
    launcher = start()
    jobs: list[tuple[Any, ...] | Exception | None] = []
    for problem, completion in zip(problems, completions, strict=True):
        try:
            tests = find_tests(problem)
            program = extract_program(completion, problem)
            jobs.append(None if program is None else (launcher, program, tests, limits, partial_credit))
        except ValueError as error:
            jobs.append(error)
    unique = list(dict.fromkeys(job for job in jobs if isinstance(job, tuple)))
    results = dict(zip(unique, _workers().map(code_worker.share_passed, unique), strict=True))
    values = [results[job] if isinstance(job, tuple) else 0.0 if job is None else job for job in jobs]
    return [0.0 if isinstance(value, OutOfBounds) else value for value in values]


def extract_program(completion: str, problem: Problem) -> str | None:
    """The program in a completion, after the code it continues: the last fenced block, or all of it."""
    text = completion.rpartition("</think>")[2]
    blocks = FENCE.findall(text)
    name = str(problem.metadata.get("entry_point") or "").rpartition(".")[2]
    if name:
        blocks = [
            block for block in blocks if re.search(rf"^\s*def {re.escape(name)}\b", block, re.MULTILINE)
        ] or blocks
    program = blocks[-1] if blocks else text
    if "method_cases" in problem.metadata and program.strip():
        program = METHOD_IMPORTS + program
    elif name and isinstance(problem.metadata.get("prompt"), str):
        # A continuation must join on; a definition of its own comes after, and counts.
        join = "\n\n" if re.search(rf"^def {re.escape(name)}\b", program, re.MULTILINE) else ""
        program = problem.metadata["prompt"] + join + program
    return program if program.strip() and len(program) <= MAX_PROGRAM else None


def find_tests(problem: Problem) -> UnitTests | Cases:
    """The tests that a problem's metadata holds."""
    data = problem.metadata
    if "test" in data and "entry_point" in data:
        name = data["entry_point"]
        return UnitTests(str(data.get("prompt", "")), (f"{data['test']}\n\ncheck({name})\n",), name)
    if "method_cases" in data:
        return _method_tests(data["method_cases"], data["entry_point"])
    if "test_list" in data:
        setup = [*(data.get("test_imports") or ()), data.get("test_setup_code") or ""]
        return UnitTests("\n".join(setup), tuple(data["test_list"]))
    for field in ("input_output", "test_cases"):
        if field in data:
            return _cases(field, json.loads(data[field]) if isinstance(data[field], str) else data[field])
    raise ValueError(
        "the problem's metadata has no tests: expected test and entry_point, test_list, method_cases, input_output "
        f"or test_cases; it has {', '.join(data)}"
    )


def check_tests(problems: Sequence[Problem]) -> Iterator[tuple[int, str]]:
    """Which problems have no tests that can be run."""
    for i, problem in enumerate(problems):
        try:
            find_tests(problem)
        except ValueError as error:
            yield i, str(error)


def _method_tests(cases: Sequence[Mapping[str, str]], entry_point: str) -> UnitTests:
    """Results are compared as JSON is: a tuple is a list."""
    owner, _, method = entry_point.rpartition(".")
    tests = []
    for case in cases:
        arguments = [json.loads(line) for line in case["input"].splitlines() if line.strip()]
        expected = json.dumps(json.loads(case["output"]))
        call = f"{owner}().{method}(*json.loads({json.dumps(arguments)!r}))"
        tests.append(f"import json\nassert json.loads(json.dumps({call})) == json.loads({expected!r})\n")
    return UnitTests("", tuple(tests), entry_point)


def _cases(field: str, value: Any) -> Cases:
    if isinstance(value, Mapping):
        inputs, outputs = value.get("inputs"), value.get("outputs")
    else:
        inputs, outputs = ([case[key] for case in value] for key in ("input", "output"))
    if (
        not inputs
        or not outputs
        or len(inputs) != len(outputs)
        or not all(isinstance(x, str) for x in (*inputs, *outputs))
    ):
        raise ValueError(f"{field}: expected as many inputs as outputs, all of them texts")
    return Cases(tuple(inputs), tuple(outputs))


@cache
def start() -> str:
    """The sandbox to use, tested once per process; an error if there is none."""
    (found,) = _workers().map(sandbox_probe.find_launcher, [()])
    if isinstance(found, Exception):
        raise found
    return found


@cache
def _workers() -> Pool:
    return Pool(limits=Limits(cpu_seconds=60, wall_seconds=900))
