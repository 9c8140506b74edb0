"""Group-relative policy optimisation of language models in JAX.

`grpo_jax.losses` is plain array mathematics and can be imported alone; everything else is one training program built
around it. Start with the README.
"""
