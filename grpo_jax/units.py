"""Amounts as people read them: in a unit that leaves no zeros before the first digit."""

from collections.abc import Sequence

BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
FLOPS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP")
NUMBERS = ("", " thousand", " million", " billion", " trillion")
PARTS_OF_A_SECOND = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def size(count: float) -> str:
    """Bytes."""
    return _scaled(count, 1024, [f" {unit}" for unit in BYTES])


def flops(count: float) -> str:
    """Floating-point operations."""
    return _scaled(count, 1000, [f" {unit}" for unit in FLOPS])


def number(count: float) -> str:
    """A plain number, in words where it is large."""
    return _scaled(count, 1000, NUMBERS)


def seconds(value: float) -> str:
    """A time."""
    unit, scale = next(((unit, scale) for unit, scale in PARTS_OF_A_SECOND if value >= scale), ("s", 1.0))
    return f"{plain(value / scale)} {unit}"


def share(value: float) -> str:
    """A part of a whole, in percent."""
    return f"{plain(100 * value)} %"


def plain(value: float) -> str:
    """Three digits, or all that are before the point; a whole number without a point."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}"


def _scaled(count: float, base: int, names: Sequence[str]) -> str:
    place = 0
    while abs(count) >= base and place < len(names) - 1:
        count, place = count / base, place + 1
    return plain(count) + names[place]
