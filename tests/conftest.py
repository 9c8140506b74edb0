"""What every test shares: eight simulated devices, a compilation cache, and no silent broadcasting."""

import os
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        # Compile time is most of the suite's time, and tiny programs gain nothing from optimisation.
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jax
import pytest

# [B, T] times [B] broadcasts silently when B == T; in tests it is an error.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "grpo_jax_test_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)

MOST_MAPPINGS = 20_000
"""Every compiled program maps some memory, and Linux allows a process 65,530 mappings: then it crashes."""


@pytest.fixture(scope="module", autouse=True)
def room_for_programs():
    """Lets go of compiled programs between modules, once there are many."""
    yield
    let_go_of_programs()


def let_go_of_programs():
    """Forgets what is compiled, if that is much; to be compiled again from the cache on disk."""
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_text().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()
