"""How near a draw came to another token: what decides whether rounding may change it."""

import numpy as np


def boundary_distance(probs, uniform, token):
    """How far `uniform` lies inside the token's interval of the cumulative distribution; negative outside."""
    above = np.cumsum(np.asarray(probs, np.float64))
    below = above[token] - probs[token]
    # The outer edges of the unit interval are no boundaries: nothing lies beyond them to be drawn instead.
    low = np.inf if below <= 1e-12 else uniform - below
    high = np.inf if above[token] >= above[-1] - 1e-12 else above[token] - uniform
    return min(low, high)
