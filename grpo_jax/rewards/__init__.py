"""How a completion is judged.

A reward is a function of (problem, completion text); `scoring.build` makes rewards from a config and
`scoring.score` applies them. Nothing is imported here, because worker processes import single modules of
this package and must not import jax with them.
"""
