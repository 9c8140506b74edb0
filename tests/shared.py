"""Where the problem sets and golden cases live that are not part of the project."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("GRPO_JAX_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def shared(relative: str) -> Path:
    """A file of the shared folder; the calling test is skipped where it is absent."""
    path = FOLDER / relative
    if not path.exists():
        pytest.skip(f"{path} is absent; GRPO_JAX_SHARED names the folder")
    return path
