"""`import grpo_jax.losses` stays light: anyone may use it without the rest of the program."""

import subprocess
import sys


def test_losses_pull_in_jax_numpy_and_jaxtyping_only():
    heavy = (
        "flax optax orbax transformers grain tensorflow_datasets tensorflow torch chex tyro rich matplotlib"
    )
    program = f"""
import sys
import jax, jaxtyping, jax.experimental.checkify, jax.scipy
before = set(sys.modules)
import grpo_jax.losses
added = {{name.split(".")[0] for name in set(sys.modules) - before}}
added -= set(sys.stdlib_module_names) | {{"grpo_jax", "jax", "jaxlib", "numpy"}}
assert not added, added
assert not set("{heavy}".split()) & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
