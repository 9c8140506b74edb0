"""The sizes compiled programs come in, so that a run compiles a handful whatever it is asked for."""

from dataclasses import dataclass

import numpy as np

SHORTEST_PROMPT = 16
FEWEST_SLOTS = 8  # below this a step costs reading the parameters, however few slots there are
FEWEST_COLUMNS = 64
SHRINK = 2  # a long tail is spent in few slots, for one more program to compile at each size
PREFILL_TOKENS = 4096  # bounds the memory of one prefill
FIXED_PREFILL = 8  # prompts per prefill when there is to be one size of everything


@dataclass(frozen=True)
class Sizes:
    """What an engine's programs may be compiled for."""

    max_prompt_length: int
    slots: int
    chunk: int
    fixed: bool
    """One size of everything, so that nothing in a call can change another's arithmetic."""
    positions_first: bool | None = None
    """The order of the cache (`cache.py`); None is what suits the backend."""
    shards: int | None = None
    """Into how many parts a mesh deals rows and slots; None without a mesh."""

    def slots_for(self, completions: int) -> int:
        """`slots`, or the smallest of its halves with room for so many."""
        count = self.slots
        fewest = max(completions, FEWEST_SLOTS, self.shards or 1)
        while not self.fixed and count % 2 == 0 and count // 2 >= fewest:
            count //= 2
        return count

    def fewer_slots(self, slots: int, completions: int) -> int:
        """What `slots` may shrink to when so many completions are left.

        On a mesh they do not: the slots that are left would have to move between devices with all they hold.
        """
        if (self.shards or 1) > 1:
            return slots
        while not self.fixed and slots % SHRINK == 0 and slots // SHRINK >= max(completions, FEWEST_SLOTS):
            slots //= SHRINK
        return slots

    def rows_for(self, slots: int, group_size: int, prompts: int) -> int:
        """Twice the prompts that fill the slots: stragglers keep theirs while the next ones are read."""
        rows = min(slots, 2 * -(-slots // group_size))
        rows = rows if self.fixed else min(rows, power_of_two(prompts))
        return rows + -rows % (self.shards or 1)

    def prompt_tokens_for(self, longest: int) -> int:
        """Width of the prompt part, or of one prefill."""
        return min(max(power_of_two(longest), SHORTEST_PROMPT), self.max_prompt_length)

    def columns_for(self, tokens: int, most: int) -> int:
        """Columns per slot, with room for `tokens`; `most` are ever needed."""
        return most if self.fixed else min(max(power_of_two(tokens), FEWEST_COLUMNS), most)

    def prefill_for(self, prompts: int, prompt_tokens: int) -> int:
        """Prompts read at one time, of so many: a power of four, so no padding and few programs."""
        if self.fixed:
            return FIXED_PREFILL
        count = 1
        while count * 4 <= prompts and count * 4 * prompt_tokens <= PREFILL_TOKENS:
            count *= 4
        return count

    def arrivals_for(self, completions: int, slots: int) -> int:
        """Completions seated at one time: a whole rollout's or a refill's."""
        few = max(slots // 8, 1)
        return few if completions <= few and not self.fixed else slots


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


def pad(array: np.ndarray, length: int, value: int = 0) -> np.ndarray:
    """The array with rows of `value` added up to `length` rows."""
    widths = [(0, length - len(array))] + [(0, 0)] * (array.ndim - 1)
    return np.pad(array, widths, constant_values=value)
