"""reasoning-gym's scorers: safe ones only, and no pay for text that merely contains the answer."""

import pytest

pytest.importorskip("reasoning_gym")

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS

from grpo_jax.config import ReasoningGymData
from grpo_jax.rewards.reasoning_gym import ALLOWED, BASE_CLASS, reasoning_gym
from grpo_jax.tasks import build
from grpo_jax.types import Problem


@pytest.fixture(scope="module")
def chain_sum():
    return build(ReasoningGymData(task="chain_sum", size=20)).train[0]


def test_extracts_first_and_pays_only_a_full_score(chain_sum):
    answer = chain_sum.answer
    for completion in (answer, f"{answer}.0", rf"I get \boxed{{{answer}}}", f"<answer>{answer}</answer>"):
        assert reasoning_gym(chain_sum, completion) == 1
    for completion in ("", f"maybe {answer}", f"{answer}1", " ".join(map(str, range(-500, 500)))):
        assert reasoning_gym(chain_sum, completion) == 0
    assert 0 < reasoning_gym(chain_sum, f"maybe {answer}", partial_credit=True) < 1


@pytest.mark.parametrize("task", sorted(ALLOWED))
def test_an_allowed_task_pays_its_own_answer_and_no_other(task):
    problem = build(ReasoningGymData(task=task, size=6, held_out_fraction=0)).train[0]
    assert reasoning_gym(problem, problem.answer) == 1
    for wrong in (
        "",
        "zzz wrong",
        "9**9**9**9",
        "__import__('os').abort()",
        "\x00",
        "1e999999999",
        "((" * 900,
    ):
        assert reasoning_gym(problem, wrong) == 0


@pytest.mark.parametrize(
    "task",
    [
        "string_insertion",
        "spiral_matrix",
        "binary_matrix",
        "n_queens",
        "simple_integration",
        "countdown",
        "intermediate_integration",
        "polynomial_multiplication",
        "puzzle24",
        "game_of_life_halting",
        "prime_factorization",
    ],
)
def test_unsafe_scorers_are_never_called(task, tmp_path):
    problem = Problem("?", "1", {"task": task, "entry": {"answer": "1", "metadata": {}}})
    canary = tmp_path / "ran"
    with pytest.raises(ValueError, match=f"{task} is not allowed, because its scorer .*Allowed are ab, acre"):
        reasoning_gym(problem, f"__import__('pathlib').Path({str(canary)!r}).touch()")
    assert not canary.exists()


def test_the_allow_list_still_says_what_the_library_does():
    """A release that gives one of these tasks a scorer of its own must be read again."""
    for task in BASE_CLASS.split():
        assert DATASETS[task][0].score_answer is ProceduralDataset.score_answer, task


def test_other_problems_are_an_error():
    with pytest.raises(ValueError, match="not one of reasoning-gym"):
        reasoning_gym(Problem("?", "1"), "1")
