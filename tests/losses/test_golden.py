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


def disturb(rows: dict, expected: dict, seed: int) -> tuple[dict, dict, int]:
    """The same batch, padded in rows and tokens, its groups renamed with gaps, its rows in another order."""
    rng = np.random.default_rng(seed)
    n, tokens = rows["mask"].shape
    size, width, num_groups = 28, 9, 6
    order = rng.permutation(size)
    names = rng.permutation(num_groups)
    rubbish = {"mask": 0, "sampler_weights": np.nan}

    def place(name, value):
        fill = rubbish.get(name, np.inf)
        if value.ndim == 1:
            return np.concatenate([value, np.full(size - n, fill, value.dtype)])[order]
        return np.pad(value, ((0, size - n), (0, width - tokens)), constant_values=fill)[order]

    moved = {name: place(name, value) for name, value in rows.items() if name != "group_ids"}
    ids = np.concatenate([names[rows["group_ids"]], np.full(size - n, -1)])[order]
    # What training has to see there is nothing.
    wanted = {
        name: value
        if value.ndim == 0
        else np.pad(value, [(0, size - n), (0, width - tokens)][: value.ndim])[order]
        for name, value in expected.items()
    }
    return moved | {"group_ids": ids.astype(np.int32)}, wanted, num_groups


def compare(case: dict, rows: dict, expected: dict, num_groups: int, *, dtype, jit: bool) -> None:
    arrays = {
        name: jnp.asarray(value, dtype if value.dtype == np.float64 else None) for name, value in rows.items()
    }
    evaluate = partial(golden.evaluate, golden.build(case), num_groups=num_groups)
    results = (jax.jit(evaluate) if jit else evaluate)(arrays)
    tolerance = 1e-9 if dtype == jnp.float64 else 1e-5
    for name, wanted in expected.items():
        got = np.asarray(results[name])
        assert got.dtype == dtype, (case["name"], name, got.dtype)
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
        np.testing.assert_allclose(
            got, wanted, rtol=tolerance, atol=tolerance * scale, err_msg=f"{case['name']}: {name}"
        )


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("moved", [False, True], ids=["as_written", "permuted_padded_renamed"])
def test_cases(cases, dtype, jit, moved):
    with jax.enable_x64(dtype == jnp.float64):
        for number, case in enumerate(cases):
            rows, expected, num_groups = golden.arrays(case), expected_of(case), len(set(case["groups"]))
            if moved:
                rows, expected, num_groups = disturb(rows, expected, seed=number)
            compare(case, rows, expected, num_groups, dtype=dtype, jit=jit)


def test_anchor_traces():
    with jax.enable_x64(True):
        for anchor in golden.load()["anchors"]:
            options = dict(anchor["config"])
            kind, initial, beliefs = options.pop("update"), options.pop("initial"), options.pop("beliefs", ())
            if kind == "soft":
                options["eta_min"] = 0.0
            difficulty = hadw.HADW(update=getattr(hadw, kind)(**options), initial=initial)
            state = hadw.init(difficulty, beliefs=beliefs)
            advance = jax.jit(partial(hadw.update, difficulty))
            for step, mean in enumerate(anchor["batch_means"]):
                state, anchors = advance(state, jnp.asarray(mean))
                np.testing.assert_allclose(anchors.prior, anchor["prior"][step], rtol=1e-9)
                np.testing.assert_allclose(anchors.posterior, anchor["posterior"][step], rtol=1e-9)
