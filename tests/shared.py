"""Files that are not in the repository: a folder next to it, or wherever GRPO_JAX_SHARED points."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared(relative: str) -> Path:
    """The file or folder `relative` of the shared folder; skips the test where that is absent."""
    path = Path(os.environ.get("GRPO_JAX_SHARED") or ROOT.parent / "shared") / relative
    if not path.exists():
        pytest.skip(f"{path} is absent; GRPO_JAX_SHARED may name the folder")
    return path
