"""Which settings are tried, in which order, and which is chosen."""

from dataclasses import replace

import pytest

from grpo_jax.config import MeshConfig
from grpo_jax.planning import search as searching
from grpo_jax.planning.compiling import Compilation
from grpo_jax.planning.report import search_as_json
from grpo_jax.planning.search import REMAT, Setting, candidates, meshes, search
from grpo_jax.planning.targets import GIB, target_of
from tests.planning.test_plan import seven_billion

V5P = target_of("v5p:2x2x2")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A model of 7.6 B parameters: one copy with its moments and reference takes 113 GiB."""
    return seven_billion(tmp_path_factory.mktemp("search"), data=1, fsdp=8)


@pytest.fixture(scope="module")
def all_candidates(config):
    """What closed form knows of every setting."""
    return candidates(config, V5P)


class Compiler:
    """Pretends that memory grows with a device's rows and with what is kept of them."""

    def __init__(self, limit: float):
        self.limit, self.asked = limit, []

    def __call__(self, config, target, program, *, exact, time_limit):
        rows = config.update.micro_batch // (config.mesh.data * config.mesh.fsdp)
        needed = rows * {"none": 40, "dots": 12, "full": 4}[config.model.remat] + 10
        self.asked.append((config.mesh, config.model.remat, config.update.micro_batch))
        if needed > self.limit:
            error = (
                "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
                f"({needed * 10}.00G) exceeds"
            )
            return Compilation(program, exact, 1.0, error=error)
        return Compilation(program, exact, 1.0, total=needed * GIB, memory={"argument": 1}, collectives=())


def test_every_mesh_uses_all_devices():
    found = meshes(8)
    assert len(found) == len(set(found)) == 10
    assert all(mesh.data * mesh.fsdp * mesh.tensor == 8 for mesh in found)


def test_candidates_hold_their_state_and_divide_the_model(all_candidates):
    found = all_candidates
    assert found == sorted(found, key=lambda candidate: (candidate.doubtful, candidate.seconds))
    assert {candidate.doubtful for candidate in found} == {False, True}
    for candidate in found:
        mesh = candidate.setting.mesh
        assert mesh.fsdp * mesh.tensor > 1  # one copy with its moments and reference does not fit on a device
        assert candidate.state <= V5P.capacity
        assert candidate.setting.micro_batch % (mesh.data * mesh.fsdp) == 0
    assert {candidate.setting.remat for candidate in found} == set(REMAT)


def test_the_fastest_that_fits_comes_first_and_hopeless_ones_are_not_tried(
    config, all_candidates, monkeypatch
):
    monkeypatch.setattr(searching, "candidates", lambda config, target: all_candidates)
    compiler = Compiler(limit=60)
    found = search(config, V5P, compilations=12, compile_with=compiler)
    assert len(compiler.asked) == len(found) <= 12
    answers = [plan.answer for _, plan in found]
    assert answers[0] == "fits"
    assert answers == sorted(answers, key=("fits", "unknown", "does not fit").index)
    fitting = [plan.programs[0].roofline.seconds for _, plan in found if plan.answer == "fits"]
    assert fitting == sorted(fitting)
    for i, (mesh, remat, size) in enumerate(compiler.asked):
        failed = [s for s, plan in found if plan.answer == "does not fit"]
        earlier = [Setting(*asked) for asked in compiler.asked[:i]]
        setting = Setting(mesh, remat, size)
        assert not any(setting.at_least(s) for s in failed if s in earlier)
    assert '"flags": "--mesh.data' in search_as_json(found)


def test_a_setting_needs_more_only_if_nothing_in_it_needs_less():
    mesh = MeshConfig(data=1, fsdp=8)
    base = Setting(mesh, "dots", 16)
    assert base.at_least(base)
    assert Setting(mesh, "none", 32).at_least(base)
    assert not Setting(mesh, "full", 32).at_least(base)
    assert not Setting(mesh, "none", 8).at_least(base)
    assert not Setting(MeshConfig(data=2, fsdp=4), "none", 32).at_least(base)


def test_devices_of_the_samplers_own_are_left_to_it(config):
    config = replace(
        config, rollout=replace(config.rollout, devices=4), update=replace(config.update, micro_batch=0)
    )
    found = [candidate.setting.mesh for candidate in candidates(config, V5P)]
    assert found and all(mesh.data * mesh.fsdp * mesh.tensor == 4 for mesh in found)


def test_nothing_fits_on_too_few_chips(config):
    compiler = Compiler(limit=60)
    assert search(config, target_of("v5e:1x1"), compile_with=compiler) == []
    assert compiler.asked == []
