"""reasoning-gym's scorers: no pay for text that merely contains the answer, and no harm from any."""

import time

import pytest

pytest.importorskip("reasoning_gym")

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from grpo_jax.config import ReasoningGymData, RewardFunction
from grpo_jax.rewards import scoring
from grpo_jax.rewards.reasoning_gym import (
    ARITHMETIC,
    HOW,
    LITERAL,
    REFUSED,
    TEXT,
    check_problems,
    is_harmless,
    reasoning_gym_all,
)
from grpo_jax.tasks import build
from grpo_jax.types import Problem

CODE = "__import__('pathlib').Path({!r}).touch()"


def problems(task, size=6):
    return build(ReasoningGymData(task=task, size=size, held_out_fraction=0)).train


def one(problem, completion, **options):
    return reasoning_gym_all([problem], [completion], **options)[0]


@pytest.fixture(scope="module")
def chain_sum():
    return problems("chain_sum")[0]


def test_extracts_first_and_pays_only_a_full_score(chain_sum):
    answer = chain_sum.answer
    for completion in (answer, f"{answer}.0", rf"I get \boxed{{{answer}}}", f"<answer>{answer}</answer>"):
        assert one(chain_sum, completion) == 1
    for completion in ("", f"maybe {answer}", f"{answer}1", " ".join(map(str, range(-500, 500)))):
        assert one(chain_sum, completion) == 0
    assert 0 < one(chain_sum, f"maybe {answer}", partial_credit=True) < 1


def test_every_task_has_a_place():
    assert HOW.keys() | REFUSED.keys() == DATASETS.keys() - {"composite"}
    assert not HOW.keys() & REFUSED.keys()


def test_the_lists_still_say_what_the_library_does():
    """A release that gives one of these tasks a scorer of its own must be read again."""
    for task in TEXT.split():
        assert DATASETS[task][0].score_answer is ProceduralDataset.score_answer, task


@pytest.mark.parametrize("task", sorted(HOW))
def test_a_task_pays_its_own_answer_and_no_other(task):
    problem = problems(task, 3)[0]
    if problem.answer:
        assert one(problem, problem.answer) == 1
    wrong = [
        w for w in ("", "zzz wrong", "__import__('os').abort()", "\x00", "((" * 900) if w != problem.answer
    ]
    assert reasoning_gym_all([problem] * len(wrong), wrong) == [0] * len(wrong)


@pytest.mark.parametrize("task", [*LITERAL.split(), *ARITHMETIC.split()])
def test_answers_are_never_run_as_code(task, tmp_path):
    problem = problems(task, 2)[0]
    answer = CODE.format(str(tmp_path / "ran"))
    attempts = [
        answer,
        f"[{answer}]",
        f"sin({answer})",
        f"x + {answer}",
        f"(lambda: {answer})()",
        f"1 if {answer} else 2",
    ]
    attempts += [f"f'{{{answer}}}'", f"[x for x in [{answer}]]", f"x.{answer}", rf"\boxed{{{answer}}}"]
    assert reasoning_gym_all([problem] * len(attempts), attempts) == [0] * len(attempts)
    assert not (tmp_path / "ran").exists()


def test_answers_that_compute_for_ever_are_ended():
    task = problems("simple_integration", 2)[0]
    start = time.monotonic()
    towers = ["9**9**9**9", "((9**99)**99)**99", "sin(x)**99/(cos(x)**98+tan(x)**97)", "2**(10**9)"]
    assert reasoning_gym_all([task] * len(towers), towers) == [0] * len(towers)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("answer", "how", "harmless"),
    [
        ("[[1, -2], ['Q', '_']]", "literal", True),
        ("4 6 7", "literal", False),
        ("'a' * 9", "literal", False),
        ("[].append", "literal", False),
        ("-3*x**3*sin(x) + C", "arithmetic", True),
        ("(10 - 2)*3", "arithmetic", True),
        ("x**x**x", "arithmetic", False),
        ("2**1000", "arithmetic", False),
        ("f(x)(y)", "arithmetic", False),
        ("eval(x)", "arithmetic", False),
        ("x.y", "arithmetic", False),
        ("'x'", "arithmetic", False),
        ("x; y", "arithmetic", False),
        ("anything", "limited", True),
    ],
)
def test_what_may_be_evaluated(answer, how, harmless):
    assert is_harmless(answer, how) is harmless


@pytest.mark.parametrize("task", [*REFUSED, "not_a_task"])
def test_tasks_that_pay_for_wrong_answers_are_refused(task):
    problem = Problem("?", "1", {"task": task, "entry": {"answer": "1", "metadata": {}}})
    (error,) = reasoning_gym_all([problem], ["1"])
    assert isinstance(error, ValueError) and f"{task} is not allowed, because its scorer" in str(error)
    assert list(check_problems([problem])) == [(0, str(error))]


def test_is_a_reward(chain_sum):
    rewards = scoring.build([RewardFunction("reasoning_gym", options={"partial_credit": False})])
    scores = scoring.score(
        problems=[chain_sum] * 2, completions=[chain_sum.answer, "x"], rewards=rewards, on_failure="error"
    )
    assert scores.total.tolist() == [1, 0]
    with pytest.raises(ValueError, match="not one of reasoning-gym"):
        scoring.check(rewards, [Problem("?", "1")])
