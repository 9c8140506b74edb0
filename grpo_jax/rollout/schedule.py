"""Who sits where: the host's side of sampling, in plain Python, without a device.

Completions wait in one queue, prompt after prompt. A free slot takes the next one, if its prompt is in a row
or a row is free to read it into. A row is free once no slot reads it. Decisions depend on what has happened
alone, never on the clock, so a run repeats itself.
"""

from typing import NamedTuple

import numpy as np


class Seat(NamedTuple):
    """A completion and the place it was given."""

    slot: int
    row: int
    prompt: int
    sample: int


class Schedule:
    """`prompts` x `group_size` completions over `slots` slots and `rows` rows of `lanes` slots each."""

    def __init__(self, *, prompts: int, group_size: int, slots: int, rows: int, lanes: int):
        self._group_size = group_size
        self._total = prompts * group_size
        self._next = 0
        self._seats: list[Seat | None] = [None] * slots
        self._prompts: list[int | None] = [None] * rows
        self._table = np.full((rows, lanes), -1)

    @property
    def waiting(self) -> int:
        """Completions in the queue."""
        return self._total - self._next

    @property
    def seated(self) -> list[Seat]:
        return [seat for seat in self._seats if seat is not None]

    @property
    def slots(self) -> int:
        return len(self._seats)

    @property
    def rows(self) -> int:
        return len(self._prompts)

    @property
    def lanes(self) -> int:
        return self._table.shape[1]

    def fill(self) -> tuple[dict[int, int], list[Seat]]:
        """Seats as many waiting completions as fit; returns {row: prompt} still to be read, and the seats."""
        new_prompts, arrivals = {}, []
        for slot, seat in enumerate(self._seats):
            if seat is not None or not self.waiting:
                continue
            prompt, sample = divmod(self._next, self._group_size)
            if prompt not in self._prompts:
                row = self._free_row()
                if row is None:
                    break
                self._prompts[row] = new_prompts[row] = prompt
            row = self._prompts.index(prompt)
            self._table[row, np.flatnonzero(self._table[row] < 0)[0]] = slot
            self._seats[slot] = Seat(slot, row, prompt, sample)
            self._next += 1
            arrivals.append(self._seats[slot])
        return new_prompts, arrivals

    def release(self, slot: int) -> None:
        """The completion in this slot is over."""
        seat = self._seats[slot]
        assert seat is not None, f"slot {slot} is free already"
        self._seats[slot] = None
        self._table[seat.row][self._table[seat.row] == slot] = -1

    def seating(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row and lane of every slot (0 if free), and the slot at every row and lane (0 if empty)."""
        row, lane = np.zeros((2, self.slots), np.int32)
        for r, c in zip(*np.nonzero(self._table >= 0), strict=True):
            row[self._table[r, c]], lane[self._table[r, c]] = r, c
        return row, lane, np.maximum(self._table, 0).astype(np.int32)

    def shrink(self, slots: int) -> tuple[np.ndarray, np.ndarray]:
        """Keeps the occupied slots alone, in `slots` of them; returns the old rows and slots that are kept.

        When slots get as few as rows, every slot has a row of its own: prompts of which one completion is
        left would otherwise fill rows built for a whole group.
        """
        assert not self.waiting and len(self.seated) <= slots < self.slots
        seats = self.seated
        spare = [slot for slot, seat in enumerate(self._seats) if seat is None]
        kept_slots = [seat.slot for seat in seats] + spare[: slots - len(seats)]
        own_rows = slots <= self.rows
        kept_rows = [seat.row for seat in seats] + [0] * (slots - len(seats))
        if not own_rows:
            kept_rows = list(range(self.rows))
        lanes = 1 if own_rows else self.lanes
        prompts, self._table = self._prompts, np.full((len(kept_rows), lanes), -1)
        self._prompts = [prompts[row] for row in kept_rows]
        self._seats = [None] * slots
        for slot, seat in enumerate(seats):
            row = slot if own_rows else seat.row
            self._seats[slot] = seat._replace(slot=slot, row=row)
            self._table[row, np.flatnonzero(self._table[row] < 0)[0]] = slot
        return np.array(kept_rows, np.int32), np.array(kept_slots, np.int32)

    def _free_row(self) -> int | None:
        """A row no slot reads. Its prompt's turn in the queue is over, or this one's would not have come."""
        free = np.flatnonzero((self._table < 0).all(axis=1))
        return int(free[0]) if len(free) else None
