"""What ends a completion: stop tokens, and text, at whichever token completes it, across token boundaries."""

from collections.abc import Callable, Mapping, Sequence


def split_stops(
    texts: Sequence[str], control_tokens: Mapping[str, int], *, what: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ids and texts to stop at. Decoded text leaves control tokens out, so one of them is stopped at by its id.

    Raises:
        ValueError: a text could never be found, since there is a control token in it; names `what` it was given for.
    """
    for text in texts:
        inside = [token for token in control_tokens if token in text]
        if inside and text not in control_tokens:
            raise ValueError(
                f"{what}: got {text!r}, expected {inside[0]!r} alone or a text without it: decoded text leaves this "
                "control token out, so that the whole is never found"
            )
    ids = tuple(control_tokens[text] for text in texts if text in control_tokens)
    return ids, tuple(text for text in texts if text not in control_tokens)


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
