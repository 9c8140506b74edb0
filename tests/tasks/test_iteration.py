"""The order of training problems: whole epochs, any position at once, resumed = uninterrupted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.tasks import batch
from grpo_jax.types import Problem

TEN = [Problem(str(i), "x") for i in range(10)]


def prompts(cursor, batch_size=4, seed=3, problems=TEN, **host):
    return [p.prompt for p in batch(problems, cursor=cursor, batch_size=batch_size, seed=seed, **host)]


@pytest.mark.parametrize("stop", range(8))
def test_fault_44_resumed_equals_uninterrupted_at_every_stop(stop):
    """10 prompts, batch 4, three epochs: the batches at 8, 20 and 28 touch or cross an epoch boundary."""
    whole = [prompts(step * 4) for step in range(8)]
    cursor, first = 0, []
    for _ in range(stop):
        first.append(prompts(cursor))
        cursor += 4
    resumed = []
    while len(first) + len(resumed) < 8:  # a new process knows the cursor alone
        resumed.append(prompts(cursor))
        cursor += 4
    assert first + resumed == whole


def test_every_epoch_holds_every_problem_once_in_its_own_order():
    stream = [prompts(i, batch_size=1)[0] for i in range(30)]
    epochs = [stream[:10], stream[10:20], stream[20:]]
    assert all(sorted(epoch) == sorted(p.prompt for p in TEN) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_seed_decides_the_order():
    assert prompts(0, 10, seed=1) == prompts(0, 10, seed=1) != prompts(0, 10, seed=2)


@settings(max_examples=30, deadline=None)
@given(cursor=st.integers(0, 10_000), size=st.integers(1, 12), count=st.integers(1, 25))
def test_a_batch_is_its_problems_one_by_one(cursor, size, count):
    problems = [Problem(str(i), "x") for i in range(count)]
    one_by_one = [prompts(cursor + i, 1, problems=problems)[0] for i in range(size)]
    assert prompts(cursor, size, problems=problems) == one_by_one


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_hosts_share_the_batch_of_one(hosts):
    shares = [prompts(6, 8, host_index=i, host_count=hosts) for i in range(hosts)]
    assert [prompt for share in shares for prompt in share] == prompts(6, 8)


def test_a_batch_that_hosts_cannot_share_is_an_error():
    with pytest.raises(ValueError, match=r"rollout.batch_size 4 cannot be divided among 3 hosts"):
        prompts(0, 4, host_count=3)


def test_no_problems_is_an_error():
    with pytest.raises(ValueError, match="no problems"):
        prompts(0, problems=[])
