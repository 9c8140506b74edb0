"""Two processes that are one run, each with its share of simulated devices."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax

ROOT = Path(__file__).parents[2]


def start(module: str, *arguments: str, devices: int, coordinator: str) -> list[subprocess.Popen]:
    """Two processes of so many devices."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    cache = {"JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir}
    return [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.training.{module}", *arguments, coordinator, str(process)],
            cwd=ROOT,
            env={**os.environ, **cache, "XLA_FLAGS": flags},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(2)
    ]


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
