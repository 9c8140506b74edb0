"""Compiles one program of a config for a target and writes what the compiler said, as JSON.

    python -m grpo_jax.planning.worker REQUEST.json

A process of its own: the compiler may abort, hang or take the machine's memory, it logs to standard error what it tells
nobody else, and its flags can only be set before JAX starts. `compiling` starts it and reads what it leaves.
"""

import ctypes
import importlib.metadata
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

QUICK_OPTIONS = {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}}
"""Compiler options of the quick level. Windowed einsums are for speed, and take minutes to compile."""

PR_SET_PDEATHSIG = 1

TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # any: the topology's name says what is compiled for
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # the lock is for chips, and none is touched
    "TPU_MIN_LOG_LEVEL": "0",  # the memory the compiler counts with is in its log alone
    "TPU_STDERR_LOG_LEVEL": "0",
    "TF_CPP_MIN_LOG_LEVEL": "0",
}


def main(path: str) -> None:
    """Compiles what the request says. Errors of the compiler are part of the answer."""
    request = json.loads(Path(path).read_text())
    end_with(request["plan"])
    answer: dict[str, Any] = {"stage": "lowering"}
    try:
        lowered, seconds = timed(lambda: lower(request))
        answer |= {"stage": "compiling", "lower_seconds": seconds}
        options = QUICK_OPTIONS.get(request["platform"]) if not request["exact"] else None
        compiled, seconds = timed(lambda: lowered.compile(compiler_options=options))
        answer |= {"stage": "reading", "compile_seconds": seconds, **read(compiled)}
        answer["stage"] = "done"
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    answer["versions"] = versions()
    answer["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(request["answer"]).write_text(json.dumps(answer))


def end_with(process: int) -> None:
    """Ends this process when `process`, which started it and keeps its time limit, ends in whatever way. On Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != process:  # it was too late to be told
            os._exit(1)


def lower(request: dict[str, Any]):
    """The program of the request, lowered for its target."""
    from grpo_jax import experiment
    from grpo_jax.planning import devices
    from grpo_jax.planning.targets import target_of
    from grpo_jax.training.shapes import shapes_of

    config = experiment.load(request["config"])
    mesh = devices.mesh_of(config, target_of(request["target"]))
    architecture = devices.architecture_for(config)
    shapes = shapes_of(config, architecture, mesh=mesh, platform=request["platform"])
    return shapes.programs[request["program"]].lower()


def read(compiled: Any) -> dict[str, Any]:
    """Memory and collectives of a compiled program."""
    from dataclasses import asdict

    from grpo_jax.planning import hlo

    memory = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "generated_code")
    sizes = {name: int(getattr(memory, f"{name}_size_in_bytes")) for name in names}
    peak = getattr(memory, "peak_memory_in_bytes", 0)
    return {
        "memory": sizes | ({"peak": int(peak)} if peak else {}),
        "collectives": [asdict(item) for item in hlo.collectives(compiled.as_text())],
    }


def versions() -> dict[str, str]:
    """Versions of what compiled."""
    found = {}
    for name in ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def timed(function):
    """(result, seconds)."""
    start = time.monotonic()
    return function(), time.monotonic() - start


if __name__ == "__main__":
    os.environ.update(TPU_ENVIRONMENT)
    main(sys.argv[1])
