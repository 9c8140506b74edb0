"""Seating: every completion once, next to its own prompt, and none waiting beside a free slot without a
reason.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rollout.schedule import Schedule


def check(schedule: Schedule, prompt_in_row: dict[int, int]) -> None:
    """The three tables of a seating agree with the seats and with what was read into the rows."""
    row, lane, slot = schedule.seating()
    places = [(seat.row, int(lane[seat.slot])) for seat in schedule.seated]
    assert len(set(places)) == len(places)
    for seat in schedule.seated:
        assert row[seat.slot] == seat.row
        assert slot[seat.row, lane[seat.slot]] == seat.slot
        assert prompt_in_row[seat.row] == seat.prompt


@settings(deadline=None, max_examples=200)
@given(
    prompts=st.integers(1, 9),
    group_size=st.integers(1, 6),
    slots=st.integers(1, 12),
    rows=st.integers(1, 5),
    data=st.data(),
)
def test_every_completion_is_seated_once_whatever_finishes_first(prompts, group_size, slots, rows, data):
    schedule = Schedule(
        prompts=prompts, group_size=group_size, slots=slots, rows=rows, lanes=min(group_size, slots)
    )
    prompt_in_row, answered = {}, []
    while schedule.waiting or schedule.seated:
        new_prompts, arrivals = schedule.fill()
        assert not set(new_prompts) & {s.row for s in schedule.seated if s not in arrivals}
        prompt_in_row |= new_prompts
        check(schedule, prompt_in_row)
        seated = [seat.slot for seat in schedule.seated]
        for slot in data.draw(st.lists(st.sampled_from(seated), min_size=1, unique=True)):
            seat = next(seat for seat in schedule.seated if seat.slot == slot)
            answered.append((seat.prompt, seat.sample))
            schedule.release(slot)
        smaller = data.draw(st.integers(0, max(slots - 1, 0)))
        if not schedule.waiting and len(schedule.seated) <= smaller < schedule.slots and smaller:
            kept_rows, kept_slots = schedule.shrink(smaller)
            assert len(kept_slots) == len(set(kept_slots.tolist())) == smaller
            prompt_in_row = {new: prompt_in_row.get(old) for new, old in enumerate(kept_rows.tolist())}
            check(schedule, prompt_in_row)
    assert sorted(answered) == [(p, g) for p in range(prompts) for g in range(group_size)]


def test_a_free_slot_is_refilled_while_its_neighbours_go_on():
    schedule = Schedule(prompts=3, group_size=2, slots=2, rows=2, lanes=2)
    new_prompts, seats = schedule.fill()
    assert new_prompts == {0: 0}
    assert [(seat.slot, seat.sample) for seat in seats] == [(0, 0), (1, 1)]
    schedule.release(1)
    new_prompts, seats = schedule.fill()
    assert new_prompts == {1: 1}  # the first prompt's other completion still reads row 0
    assert [(seat.slot, seat.prompt, seat.sample) for seat in seats] == [(1, 1, 0)]
    schedule.release(0)
    assert schedule.fill()[0] == {}  # prompt 1 is in its row already
    assert {seat.row for seat in schedule.seated} == {1}


def test_a_group_larger_than_the_slots_keeps_its_row_until_its_last_completion():
    schedule = Schedule(prompts=2, group_size=5, slots=2, rows=1, lanes=2)
    for expected in ({0: 0}, {}, {}, {0: 1}):
        assert schedule.fill()[0] == expected
        for seat in schedule.seated:
            schedule.release(seat.slot)


def test_few_slots_get_a_row_each():
    """Four prompts with one straggler each: four rows of one lane, where there were four rows of three."""
    schedule = Schedule(prompts=4, group_size=3, slots=12, rows=4, lanes=3)
    schedule.fill()
    for seat in schedule.seated:
        if seat.sample != 1:
            schedule.release(seat.slot)
    rows, slots = schedule.shrink(4)
    np.testing.assert_array_equal(rows, [0, 1, 2, 3])
    np.testing.assert_array_equal(slots, [1, 4, 7, 10])
    assert (schedule.slots, schedule.rows, schedule.lanes) == (4, 4, 1)


def test_releasing_a_free_slot_is_our_own_mistake():
    schedule = Schedule(prompts=1, group_size=1, slots=2, rows=1, lanes=1)
    with pytest.raises(AssertionError, match="slot 1 is free already"):
        schedule.release(1)
