"""Whole plans: with a pretended compiler, and with the real ones for simulated devices and for a TPU slice."""

import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from grpo_jax import amounts, cli, experiment
from grpo_jax.config import MeshConfig, OptimizerConfig, RolloutConfig, UpdateConfig
from grpo_jax.planning import compiling, devices, report
from grpo_jax.planning.compiling import Compilation, compile_program
from grpo_jax.planning.plan import make_plan
from grpo_jax.planning.report import as_dict
from grpo_jax.planning.targets import GIB, target_of
from tests.tiny import MODEL, tiny

SEVEN_BILLION = replace(
    MODEL,
    vocab_size=152_064,
    num_layers=28,
    width=3584,
    mlp_width=18_944,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    max_position=4096,
    qkv_bias=True,
    tied_embeddings=False,
    dtype="bfloat16",
    remat="full",
)


@pytest.fixture
def small(tmp_path):
    """A model of eight heads on a mesh with every axis."""
    return tiny(
        tmp_path / "run",
        model=replace(MODEL, num_layers=2, vocab_size=64, width=32, dtype="bfloat16", remat="full"),
        mesh=MeshConfig(data=1, fsdp=4, tensor=2),
        update=UpdateConfig(micro_batch=4, layout="plain"),
    )


def seven_billion(tmp_path, **mesh):
    """Qwen2.5-7B's shape, 128 sequences of 1024 + 3072 tokens."""
    return tiny(
        tmp_path / "run",
        model=SEVEN_BILLION,
        rollout=RolloutConfig(
            batch_size=16, group_size=8, max_prompt_length=1024, max_completion_length=3072
        ),
        update=UpdateConfig(micro_batch=16, layout="plain"),
        optimizer=OptimizerConfig(),
        mesh=MeshConfig(**mesh),
    )


class Pretended:
    """A compiler that says the same of every program, and remembers what it was asked."""

    def __init__(self, **said):
        self.said, self.asked = said, []

    def __call__(self, config, target, program, *, exact, time_limit):
        self.asked.append(program)
        return Compilation(program, exact, 1.0, **self.said)


FINE = {
    "total": 10 * GIB,
    "memory": {"argument": 8 * GIB, "output": 0, "alias": 0, "temp": GIB, "peak": 9 * GIB},
    "collectives": (
        {"kind": "all-gather", "depth": 1, "bytes": 90, "traffic": 45e9, "count": 3, "at_least": False},
    ),
}


def test_a_plan_of_seven_billion_parameters(tmp_path):
    plan = make_plan(
        seven_billion(tmp_path, data=1, fsdp=16), target_of("v5p:2x2x4"), compile_with=Pretended(**FINE)
    )
    assert plan.answer == "fits"
    assert plan.parameters == 7_615_616_512
    update = plan.programs[0]
    sizes = {item.name: item.bytes for item in update.arguments}
    # Float32 parameters over 16 devices, the moments twice that; norms and key biases, which stay whole, are the rest.
    assert sizes["parameters"] == pytest.approx(4 * plan.parameters / 16, rel=2e-3)
    assert sizes["moments"] == pytest.approx(2 * sizes["parameters"], rel=1e-6)
    line = update.roofline
    assert line.network_seconds == pytest.approx(45 / 180)
    assert line.seconds == max(line.compute_seconds, line.memory_seconds, line.network_seconds)
    # 6 FLOPs a parameter and token, besides the embedding and attention, is the usual estimate.
    tokens = 128 * 4096
    assert update.cost.useful_flops == pytest.approx(6 * plan.parameters * tokens, rel=0.1)
    assert 0 < line.mfu < 0.75  # full rematerialisation is a quarter of the work


def test_state_too_large_is_not_even_compiled(tmp_path):
    compiler = Pretended(**FINE)
    plan = make_plan(seven_billion(tmp_path, data=16, fsdp=1), target_of("v6e:4x4"), compile_with=compiler)
    assert plan.answer == "does not fit"
    assert compiler.asked == []
    said = as_dict(plan)["programs"]["update"]
    assert (
        "state alone is 113" in said["verdict"]["reason"]
    )  # GiB: four copies of float32, with the reference
    assert said["dominated_by"]["name"] == "moments"
    assert "mesh.fsdp" in said["dominated_by"]["change"]


def test_one_unknown_program_makes_the_plan_unknown(small):
    def compiler(config, target, program, *, exact, time_limit):
        said = FINE if program != "decode" else {"error": "JaxRuntimeError: INTERNAL: what is this?"}
        return Compilation(program, exact, 1.0, **said)

    plan = make_plan(small, target_of("v5p:2x2x2"), compile_with=compiler)
    assert [program.verdict.answer for program in plan.programs] == ["fits", "fits", "unknown"]
    assert plan.answer == "unknown"


def printed(plan):
    console = Console(file=io.StringIO(), width=None, soft_wrap=True)
    report.show(plan, console)
    return console.file.getvalue()


def test_small_amounts_are_not_printed_as_nothing(small):
    plan = make_plan(small, target_of("v5p:2x2x2"), compile_with=Pretended(**FINE))
    assert not re.search(r"\b0\.0+ |\b0 [KMG]iB|\b0\.0+\d* [A-Z]", printed(plan))


def test_what_a_run_compiles_and_a_plan_leaves_out_is_said(small):
    plan = make_plan(small, target_of("v5p:2x2x2"), compile_with=Pretended(**FINE))
    assert "not planned: the warm start's update, 8 sequences in 2 micro-batches" in printed(plan)
    whole = replace(
        small,
        warm_start=replace(small.warm_start, steps=0),
        rollout=replace(small.rollout, devices=4),
        mesh=replace(small.mesh, fsdp=2),
    )
    plan = make_plan(whole, target_of("v5p:2x2x2"), compile_with=Pretended(**FINE))
    assert as_dict(plan)["not_planned"] == ["the sampler on its own 4 devices (rollout.devices)"]
    whole = replace(whole, rollout=small.rollout, mesh=small.mesh)
    plan = make_plan(whole, target_of("v5p:2x2x2"), compile_with=Pretended(**FINE))
    assert "not planned" not in printed(plan)


def test_a_config_that_is_wrong_for_the_slice(small):
    with pytest.raises(ValueError, match=r"mesh\.fsdp"):
        make_plan(small, target_of("v5p:2x2x1"), compile_with=Pretended(**FINE))


def test_an_automatic_micro_batch_is_no_plan(small):
    small = replace(small, update=replace(small.update, micro_batch=amounts.AUTO))
    with pytest.raises(ValueError, match=r"update\.micro_batch.*--search"):
        make_plan(small, target_of("v5p:2x2x2"), compile_with=Pretended(**FINE))


def test_temporaries_that_are_too_large_are_named(small):
    error = (
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (183.10G) exceeds available HBM (95.74G)."
    )
    plan = make_plan(small, target_of("v5p:2x2x2"), names=("update",), compile_with=Pretended(error=error))
    (program,) = plan.programs
    assert plan.answer == "does not fit"
    assert program.dominant in program.temporaries
    assert program.dominant == max(program.temporaries, key=lambda item: item.bytes)


def test_a_compiler_that_takes_too_long(small):
    found = compile_program(small, target_of("cpu:8"), "log_probs", time_limit=0.5)
    assert found.timed_out and found.memory is None and "500 ms" in found.error


PLANNER = """
import sys
from grpo_jax import experiment
from grpo_jax.planning import compiling, targets
compiling.WORKER = "tests.planning.endless"
compiling.compile_program(experiment.load(sys.argv[1]), targets.target_of("cpu:1"), "update")
"""


def test_a_compiler_does_not_outlive_a_plan_that_is_killed(small, tmp_path):
    """Nobody would keep its time limit then."""
    (tmp_path / "experiment.py").write_text(experiment.to_source(small))
    said = tmp_path / "worker"
    environment = {**os.environ, "WORKER_SAYS": str(said), "TMPDIR": str(tmp_path)}
    planner = subprocess.Popen([sys.executable, "-c", PLANNER, tmp_path / "experiment.py"], env=environment)
    try:
        until(lambda: said.exists() and said.read_text())
        worker = int(said.read_text())
    finally:
        planner.kill()
        planner.wait()
    try:
        until(lambda: not alive(worker))
    finally:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


def until(condition):
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("not within half a minute")


def alive(pid):
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_compiler_that_dies(small, monkeypatch):
    monkeypatch.setattr(compiling, "WORKER", "grpo_jax.planning.no_such_module")
    found = compile_program(small, target_of("cpu:8"), "log_probs")
    assert "ended with status 1" in found.error and "no_such_module" in found.error


def test_on_simulated_devices(small, tmp_path, capsys):
    """The command, its process and the compiler, for devices that this machine can pretend to have."""
    path = tmp_path / "config.py"
    path.write_text(experiment.to_source(small))
    command = ["plan", "--topology", "cpu:8", "--config", str(path), "--programs", "log_probs"]
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command, "--json", "--mesh.data", "2", "--mesh.fsdp", "2"])
    assert exit_.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["answer"] == "fits" and said["executed"] is False
    assert said["mesh"] == {"data": 2, "fsdp": 2, "tensor": 2}
    program = said["programs"]["log_probs"]
    # The compiler drops what log-probs do not read, so its arguments are the parameters and part of the batch.
    sizes = program["arguments"]
    compiled = program["compilation"]["memory"]["argument"]
    assert sizes["parameters"] <= compiled <= sizes["parameters"] + sizes["batch"]
    kinds = {item["kind"] for item in program["compilation"]["collectives"]}
    assert "all-gather" in kinds  # of fsdp's parameters


@pytest.mark.parametrize("flag", ["--compilations=-2", "--time_limit=nan", "--time_limit=0"])
def test_limits_that_are_none(flag, small, tmp_path, capsys):
    path = tmp_path / "config.py"
    path.write_text(experiment.to_source(small))
    with pytest.raises(SystemExit) as exit_:
        cli.main(["plan", "--topology", "cpu:8", "--config", str(path), "--search", flag])
    assert exit_.value.code == 2
    name, _, value = flag.partition("=")
    assert f"error: {name}: got {value}" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the extra `plan` is not installed")
def test_on_a_tpu_slice(small):
    """The TPU compiler itself; what it counts for arguments must hold what closed form counts."""
    plan = make_plan(small, target_of("v5p:2x2x2"), names=("log_probs",))
    (program,) = plan.programs
    assert program.verdict.answer == "fits", program.compilation.error
    assert program.compilation.total > program.compilation.memory["argument"]
    assert program.compilation.versions["libtpu"]
    assert {item["kind"] for item in program.compilation.collectives} >= {"all-gather", "all-reduce"}
    assert {item["depth"] for item in program.compilation.collectives} >= {1, 2}  # micro-batches, layers
    assert not any(item["at_least"] for item in program.compilation.collectives)


@pytest.mark.parametrize(
    "topology, message",
    [
        ("v5p:2x2x2", 'planning for TPUs needs their compiler: pip install "grpo_jax[plan]"'),
        ("h100:8", 'planning for GPUs needs their compiler: pip install "grpo_jax[cuda]"'),
    ],
)
def test_a_missing_compiler_is_one_line(topology, message, small, tmp_path, monkeypatch, capsys):
    path = tmp_path / "config.py"
    path.write_text(experiment.to_source(small))
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["plan", "--topology", topology, "--config", str(path)])
    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"grpo-jax: error: {message}\n"


@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="the extra `cuda` is not installed"
)
def test_on_gpus(small):
    """Without a card; the compiler accepts any size, so the verdict is the plan's own."""
    small = replace(small, mesh=MeshConfig(data=1, fsdp=4))
    (program,) = make_plan(small, target_of("h100:4"), names=("log_probs",)).programs
    assert program.verdict.answer == "fits", program.compilation.error
    assert program.verdict.available == pytest.approx(0.75 * 79.1 * GIB, rel=1e-3)
