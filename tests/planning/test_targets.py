"""Names of slices."""

import pytest

from grpo_jax.planning.targets import GIB, target_of


@pytest.mark.parametrize(
    "name, devices, gib",
    [
        ("v5p:2x2x2", 8, 95.74),
        ("v6e:4x4", 16, 31.25),
        ("v5e:1x1", 1, 15.75),
        ("V5E:2x4", 8, 15.75),
        ("v4:2x2x1", 8, 15.75),  # two devices per chip
        ("h100:8", 8, 79.1),
    ],
)
def test_names(name, devices, gib):
    target = target_of(name)
    assert (target.devices, target.capacity / GIB) == (devices, pytest.approx(gib))


def test_simulated_devices_share_the_machine():
    assert target_of("cpu:4").capacity == target_of("cpu:1").capacity / 4


@pytest.mark.parametrize(
    "name", ["v5p", "v5p:8", "v5e:2x2x2", "v5litepod-16", "v5p:2x0x2", "tpu:2x2", "v5p:2x2x2x"]
)
def test_names_that_mean_nothing(name):
    with pytest.raises(ValueError, match=f"--topology: got '{name}'"):
        target_of(name)
