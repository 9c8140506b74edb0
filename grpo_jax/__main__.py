"""`python -m grpo_jax` is the `grpo-jax` command."""

from grpo_jax.cli import main

main()
