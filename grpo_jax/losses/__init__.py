"""Group-relative losses as array mathematics: jax, numpy and jaxtyping, nothing else.

Start with `objective.py`, which says what is computed when, and `recipes.py`, which names the compositions.
"""
