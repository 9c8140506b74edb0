"""Mixtures and strata: drawn by weight, resumable, whole epochs within each pool."""

from collections import Counter

import pytest

from grpo_jax.config import ArithmeticData, Component, DifficultyData, MixtureData, ReasoningGymData
from grpo_jax.tasks import batch, build, drop_long
from grpo_jax.tasks.mixing import by_difficulty, mixture
from grpo_jax.tasks.splitting import TaskSplit
from grpo_jax.types import Problem


def pool(name, count, **metadata):
    return TaskSplit(
        [Problem(f"{name}{i}", "x", metadata) for i in range(count)], [Problem(f"{name} held", "x")]
    )


def drawn(split, cursor, size, seed=1):
    return [
        p.prompt for p in batch(split.train, cursor=cursor, batch_size=size, seed=seed, mixture=split.mixture)
    ]


def test_weights_are_the_shares_drawn():
    split = mixture([pool("a", 10), pool("b", 40), pool("c", 5)], [3, 1, 0])
    prompts = drawn(split, 0, 400)
    assert Counter(prompt[0] for prompt in prompts) == {"a": 300, "b": 100}
    assert len(split.train) == 55 and len(split.held_out) == 3


def test_each_pool_keeps_whole_epochs():
    prompts = [p for p in drawn(mixture([pool("a", 10), pool("b", 7)], [1, 1]), 0, 60) if p[0] == "a"]
    assert all(len(set(prompts[i : i + 10])) == 10 for i in (0, 10, 20))


def test_resumed_equals_uninterrupted_at_any_cursor():
    split = mixture([pool("a", 10), pool("b", 7)], [2, 1])
    whole = drawn(split, 0, 90)
    for cursor in (1, 10, 21, 30, 59):
        assert drawn(split, cursor, 30) == whole[cursor : cursor + 30]
    assert drawn(split, 0, 90, seed=2) != whole


def test_a_prompt_of_two_components_belongs_to_the_first():
    split = mixture([pool("a", 3), TaskSplit([Problem("a0", "other"), Problem("b0", "x")], [])], [1, 1])
    assert [p.answer for p in split.train] == ["x"] * 4 and split.mixture.pools == ((0, 1, 2), (3,))


def test_a_prompt_trained_in_one_and_held_out_in_another_is_refused():
    with pytest.raises(ValueError, match="1 held-out prompts are also training problems"):
        mixture([pool("a", 3), TaskSplit([Problem("b0", "x")], [Problem("a1", "x")])], [1, 1])


def test_strata_of_difficulty():
    levels = [Problem(str(i), "x", {"level": f"Level {i % 5 + 1}"}) for i in range(50)]
    split = by_difficulty(TaskSplit(levels, []), field="level", edges=(2, 4), weights=(0, 3, 1))
    seen = Counter(int(prompt) % 5 + 1 for prompt in drawn(split, 0, 400))
    assert seen[1] == 0 and seen[2] + seen[3] == 300 and seen[4] + seen[5] == 100


@pytest.mark.parametrize(("value", "number"), [("3/8", 0.375), (2, 2), (0.5, 0.5), ("Level 3", 3)])
def test_difficulties_as_data_sets_write_them(value, number):
    split = TaskSplit([Problem("a", "x", {"d": value})], [])
    below = by_difficulty(split, field="d", edges=(number,), weights=(0, 1))
    assert below.mixture.pools == ((), (0,))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"field": "level"}, "'level' is not in a problem's metadata, which has d"),
        ({"edges": (3, 2), "weights": (1, 1, 1)}, "increasing edges and one more weight"),
        ({"weights": (1,)}, "increasing edges and one more weight"),
        ({"weights": (1, 1)}, "stratum 1 has a weight but no problems; the strata hold 3, 0"),
        ({"weights": (0, 0)}, "not all 0"),
        ({"weights": (-1, 1)}, "at least 0"),
    ],
)
def test_strata_that_cannot_be_are_errors(arguments, says):
    with pytest.raises(ValueError, match=says):
        by_difficulty(pool("a", 3, d=1), **{"field": "d", "edges": (2,), "weights": (1, 0), **arguments})


def test_a_difficulty_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="'d' is 'hard' in a problem, expected a number"):
        by_difficulty(pool("a", 1, d="hard"), field="d", edges=(), weights=(1,))


def test_from_a_config():
    pytest.importorskip("reasoning_gym")
    sums, gcd = ArithmeticData(size=500), ReasoningGymData(task="gcd", size=100)
    split = build(MixtureData((Component(sums, 3.0), Component(gcd, 1.0))))
    prompts = drawn(split, 0, 100)
    assert sum("+" in prompt and len(prompt) < 8 for prompt in prompts) == 75
    strata = build(DifficultyData(sums, field="carries", edges=(1.0,), weights=(0.0, 1.0)))
    assert all(
        p.metadata["carries"] >= 1
        for p in batch(strata.train, cursor=0, batch_size=50, seed=0, mixture=strata.mixture)
    )
    with pytest.raises(ValueError, match=r"data\.components is empty"):
        build(MixtureData())


def test_long_prompts_are_left_out_and_counted():
    lengths = {"tokens": lambda p: len(p.prompt), "limit": 5}
    split = TaskSplit([Problem("a" * n, "x") for n in (8, 3, 5)], [Problem("b" * n, "x") for n in (2, 6, 7)])
    shorter, dropped = drop_long(split, **lengths)
    assert [len(p.prompt) for p in shorter.train] == [3, 5] and dropped == (1, 2)
    assert [len(p.prompt) for p in shorter.held_out] == [2]


def test_a_mixture_without_long_prompts_still_draws_by_weight():
    parts = [TaskSplit([Problem(name * n, "x") for n in (9, 1, 2, 3)], []) for name in "ab"]
    lengths = {"tokens": lambda p: len(p.prompt), "limit": 5}
    shorter, _ = drop_long(mixture(parts, [3, 1]), **lengths)
    assert Counter(prompt[0] for prompt in drawn(shorter, 0, 80)) == {"a": 60, "b": 20}
    with pytest.raises(ValueError, match="pool 1 of the mixture has only prompts of more than 0 tokens"):
        drop_long(mixture(parts, [0, 1]), tokens=lambda p: len(p.prompt), limit=0)
