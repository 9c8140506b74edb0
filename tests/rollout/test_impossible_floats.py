"""Settings that float32 cannot work with are refused: all log-probs were NaN, and a run went on to its end."""

import pytest

from grpo_jax.rollout.settings import Sampling


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 1e-46),
        ("repetition_penalty", 1e-46),
        ("repetition_penalty", 1e300),
        ("logit_bias", {5: 1e300}),
        ("logit_bias", {5: float("nan")}),
    ],
)
def test_what_float32_cannot_hold_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"sampling\.{name} is .*; expected"):
        Sampling(**{name: value})


def test_what_it_can_hold_is_taken():
    Sampling(temperature=1e-6, repetition_penalty=1e6, logit_bias={5: -float("inf"), 6: 1e6})
