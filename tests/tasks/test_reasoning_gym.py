"""reasoning-gym tasks by name."""

import sys

import pytest

from grpo_jax.config import ReasoningGymData
from grpo_jax.tasks import build

pytest.importorskip("reasoning_gym")


def test_a_task_with_options():
    options = {"min_terms": 2, "max_terms": 2, "max_digits": 2}
    sides = build(ReasoningGymData(task="chain_sum", options=options, size=300, prompt="Q: {question}\n"))
    problems = [*sides.train, *sides.held_out]
    assert len({p.prompt for p in problems}) == len(problems) and sides.held_out
    for problem in problems:
        assert (
            problem.prompt.startswith("Q: State the final answer") and problem.metadata["task"] == "chain_sum"
        )
        assert int(problem.answer) == eval(problem.prompt.split(":")[2].split("=")[0])


def test_duplicates_are_removed():
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    sides = build(ReasoningGymData(options=options, size=500))
    assert len(sides.train) + len(sides.held_out) < 250  # 2 · 10² sums and differences exist


def test_is_the_same_every_time():
    data = ReasoningGymData(task="gcd", size=50)
    assert [p.prompt for p in build(data).train] == [p.prompt for p in build(data).train]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (ReasoningGymData(task="chain_sums"), "data.task 'chain_sums'.*Did you mean 'chain_sum'"),
        (
            ReasoningGymData(options={"terms": 2}),
            "'terms' is not an option of reasoning-gym's chain_sum.*min_terms",
        ),
        (ReasoningGymData(options={"min_terms": 9, "max_terms": 2}), "refuses"),
        (ReasoningGymData(prompt="{q}"), "data.prompt names 'q', but the row has 'question'"),
        (ReasoningGymData(size=0), "data.size is 0"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(data, says):
    with pytest.raises(ValueError, match=says):
        build(data)


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"pip install 'grpo_jax\[reasoning-gym\]'"):
        build(ReasoningGymData())


def test_a_level_of_the_curriculum_and_options_go_before_it():
    easy, hard = (build(ReasoningGymData(size=30, level=level)).train for level in (0, 4))
    assert max(p.metadata["entry"]["metadata"]["num_terms"] for p in easy) <= 3
    assert max(p.metadata["entry"]["metadata"]["num_terms"] for p in hard) >= 5
    both = build(ReasoningGymData(size=30, level=4, options={"min_terms": 2, "max_terms": 2})).train
    assert {p.metadata["entry"]["metadata"]["num_terms"] for p in both} == {2}
    with pytest.raises(ValueError, match=r"data\.level is -1, expected at least 0"):
        build(ReasoningGymData(level=-1))
