"""Stop strings: text ends a completion at whichever token completes it, across token boundaries."""

from collections.abc import Callable, Sequence


def stop_length(
    ids: Sequence[int], stop_strings: Sequence[str], to_text: Callable[[Sequence[int]], str]
) -> int | None:
    """Tokens up to and with the first whose text so far contains a stop string; None if none does."""

    def contains(length: int) -> bool:
        text = to_text(ids[:length])
        return any(stop in text for stop in stop_strings)

    if not contains(len(ids)):
        return None
    return next(length for length in range(1, len(ids) + 1) if contains(length))
