"""The update is one number whatever it is cut into: every mesh × micro-batches × layout × objective against one device.

A few combinations are always run: between them every mesh, micro-batch count, layout and objective, each layout on each
mesh that splits parameters, and two processes. All 405, at some six seconds each, and two processes with their 72:

    pytest tests/training/test_combinations.py -m slow
    pytest tests/training/test_combinations.py -m slow -k "2x2x2-4"    # every layout and objective, every axis above 1
"""

import numpy as np
import pytest

from tests.conftest import let_go_of_programs
from tests.training.combinations import ALL, Cut, make_policy, step
from tests.training.processes import free_address, start

ALWAYS = [
    Cut((1, 1, 1), 16, "packed", "balanced_unit"),
    Cut((8, 1, 1), 16, "group", "sequence_sum"),
    Cut((2, 4, 1), 16, "plain", "batch_token"),
    Cut((2, 4, 1), 4, "packed", "dfpo"),
    Cut((2, 4, 1), 1, "group", "sequence"),
    Cut((2, 2, 2), 16, "packed", "balanced_mass"),
    Cut((1, 2, 4), 1, "packed", "token"),
    Cut((1, 2, 4), 4, "group", "constant"),
]
ALWAYS_ON_TWO_PROCESSES = [Cut((2, 2, 2), 4, "packed", "dfpo"), Cut((8, 1, 1), 1, "group", "balanced")]
ON_TWO_PROCESSES = [cut for cut in ALL if cut.mesh != (1, 1, 1) and cut.objective in ("balanced", "dfpo")]


@pytest.fixture(scope="module")
def policy():
    return make_policy()


@pytest.fixture(scope="module")
def expected(policy):
    """objective -> the step on one device in one micro-batch of plain rows, made when it is first asked for."""
    found = {}

    def of(objective: str):
        if objective not in found:
            found[objective] = step(policy, Cut((1, 1, 1), 1, "plain", objective))
        return found[objective]

    return of


@pytest.fixture(autouse=True)
def room_for_programs_here():
    """There are more programs in this module than a process has room for."""
    yield
    let_go_of_programs()


def assert_same(one, other):
    """Each leaf within 1e-5 of its norm."""
    assert 1e-3 < one[1]["grad/norm"] < np.inf
    for a, b in zip(one[0], other[0], strict=True):
        assert np.linalg.norm(a) > 0
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a)
    assert one[1].keys() == other[1].keys()
    for name in one[1]:
        np.testing.assert_allclose(other[1][name], one[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("cut", ALWAYS, ids=str)
def test_an_update_does_not_depend_on_how_it_is_cut(policy, expected, cut):
    assert_same(expected(cut.objective), step(policy, cut))


@pytest.mark.slow
@pytest.mark.parametrize("cut", ALL, ids=str)
def test_none_of_all_updates_does(policy, expected, cut):
    assert_same(expected(cut.objective), step(policy, cut))


@pytest.mark.parametrize(
    "cuts",
    [ALWAYS_ON_TWO_PROCESSES, pytest.param(ON_TWO_PROCESSES, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_nor_on_how_many_processes(expected, cuts, tmp_path):
    """Two of four devices each; the first writes what comes out."""
    processes = start("host_steps", str(tmp_path), *map(str, cuts), devices=4, coordinator=free_address())
    try:
        outputs = [process.communicate(timeout=120 + 120 * len(cuts))[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    for cut in cuts:
        found = np.load(tmp_path / f"{cut}.npz")
        leaves = [found[name] for name in sorted(found) if name.startswith("leaf_")]
        metrics = {name: float(found[name]) for name in found if not name.startswith("leaf_")}
        assert_same(expected(cut.objective), (leaves, metrics))
