"""Amounts in words: checked by eye, and never as nothing where there is something."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax import units


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (units.size, 0, "0 B"),
        (units.size, 1023, "1,023 B"),
        (units.size, 1024, "1 KiB"),
        (units.size, 13 * 2**20 + 2**19, "13.50 MiB"),
        (units.size, 19.29 * 2**30, "19.29 GiB"),
        (units.size, -3 * 2**30, "-3 GiB"),
        (units.size, 2000 * 2**50, "2,000 PiB"),
        (units.flops, 1.55e10, "15.50 GFLOP"),
        (units.flops, 999, "999 FLOP"),
        (units.number, 1130, "1.13 thousand"),
        (units.number, 7_615_616_512, "7.62 billion"),
        (units.number, 0.25, "0.25"),
        (units.seconds, 0, "0 s"),
        (units.seconds, 4.53e-4, "453 µs"),
        (units.seconds, 0.155, "155 ms"),
        (units.seconds, 2e-12, "2e-12 s"),
        (units.seconds, 600, "600 s"),
        (units.share, 0.003, "0.3 %"),
        (units.share, 1, "100 %"),
        (units.share, 0.4321, "43.21 %"),
    ],
)
def test_in_words(say, value, text):
    assert say(value) == text


@given(
    say=st.sampled_from([units.size, units.flops, units.number, units.seconds, units.share]),
    value=st.floats(1e-9, 1e18),
)
def test_something_is_never_written_as_nothing(say, value):
    digits = re.sub(r"[^1-9]", "", say(value).replace("e-", "").split(" ")[0])
    assert digits
