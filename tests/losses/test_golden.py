"""Every case and anchor trace of the golden file, which was written in float64 by plain loops."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.losses import hadw
from tests.losses import golden


@pytest.fixture(scope="module")
def cases():
    return golden.load()["cases"]


def expected_of(case: dict) -> dict[str, np.ndarray]:
    values = {name: np.asarray(value) for name, value in case["expected"].items() if value is not None}
    if "hadw_weights" in values:
        values["weighted_advantages"] = values.pop("hadw_weights") * values["advantages"]
    return values


def disturb(rows: dict, expected: dict, size: tuple[int, int, int], seed: int) -> tuple[dict, dict]:
    """The same batch: rows and tokens padded to one size, rows in another order, groups renamed with gaps."""
    n, tokens = rows["mask"].shape
    num_rows, width, num_groups = size
    rng = np.random.default_rng(seed)
    order, names = rng.permutation(num_rows), rng.permutation(num_groups)

    def place(value, fill):
        padding = [(0, num_rows - n), (0, width - tokens)][: value.ndim]
        return np.pad(value, padding, constant_values=fill)[order] if value.ndim else value

    # Nothing may be read where the mask is False or the group id is −1, so infinities stand there.
    moved = {name: place(value, False if name == "mask" else np.inf) for name, value in rows.items()
             if name != "group_ids"}  # fmt: skip
    moved["group_ids"] = place(names[rows["group_ids"]].astype(np.int32), -1)
    return moved, {name: place(value, 0.0) for name, value in expected.items()}


def compare(case: dict, rows: dict, expected: dict, num_groups: int, *, dtype, jit: bool) -> None:
    tolerance = 1e-9 if dtype == jnp.float64 else 1e-5
    rows = {name: jnp.asarray(x, dtype if x.dtype == np.float64 else None) for name, x in rows.items()}
    results = golden.evaluate(case, rows, num_groups, jit=jit)
    for name, wanted in expected.items():
        got = np.asarray(results[name])
        assert got.dtype == dtype, (case["name"], name)
        if name == "dfpo_weights":  # on padding rows they multiply a weight of 0, and may be anything
            got = np.where(rows["group_ids"] >= 0, got, 0.0)
        np.testing.assert_allclose(
            got, wanted, rtol=tolerance, atol=tolerance, err_msg=f"{case['name']}: {name}"
        )


@pytest.mark.parametrize(
    ("dtype", "jit"),
    [
        pytest.param(jnp.float64, False, id="float64-eager"),
        pytest.param(jnp.float64, True, id="float64-jit"),
        pytest.param(jnp.float32, True, id="float32-jit"),
        pytest.param(jnp.float32, False, id="float32-eager", marks=pytest.mark.slow),
    ],
)
def test_every_case_permuted_padded_and_renamed(cases, dtype, jit):
    size = (
        max(len(case["groups"]) for case in cases) + 3,
        max(len(case["mask"][0]) for case in cases) + 2,
        max(len(set(case["groups"])) for case in cases) + 2,
    )
    with jax.enable_x64(dtype == jnp.float64):
        for seed, case in enumerate(cases):
            rows, expected = disturb(golden.arrays(case), expected_of(case), size, seed)
            compare(case, rows, expected, size[2], dtype=dtype, jit=jit)


@pytest.mark.slow  # every case has a shape of its own to compile for
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32], ids=["float64", "float32"])
def test_every_case_as_written(cases, dtype, jit):
    with jax.enable_x64(dtype == jnp.float64):
        for case in cases:
            num_groups = len(set(case["groups"]))
            compare(case, golden.arrays(case), expected_of(case), num_groups, dtype=dtype, jit=jit)


def test_anchor_traces():
    with jax.enable_x64(True):
        for anchor in golden.load()["anchors"]:
            options = dict(anchor["config"])
            kind, initial, beliefs = options.pop("update"), options.pop("initial"), options.pop("beliefs", ())
            if kind == "soft":
                options["eta_min"] = 0.0  # the paper's rule, without our floor
            difficulty = hadw.HADW(update=getattr(hadw, kind)(**options), initial=initial)
            state = hadw.init(difficulty, beliefs=beliefs)
            advance = jax.jit(partial(hadw.update, difficulty))
            for step, mean in enumerate(anchor["batch_means"]):
                state, anchors = advance(state, jnp.asarray(mean))
                np.testing.assert_allclose(anchors.prior, anchor["prior"][step], rtol=1e-9)
                np.testing.assert_allclose(anchors.posterior, anchor["posterior"][step], rtol=1e-9)
