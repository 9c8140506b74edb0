"""Choosers draw from exactly the distribution they say, and report its log-probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from grpo_jax.rollout import sampling
from tests.rollout.boundaries import boundary_distance

DRAWS = 40_000


def exact(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The distribution by sorting, in float64, one rule after the other."""
    scaled = np.asarray(logits, np.float64) / temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    if 0 < top_k < len(probs):
        probs = np.where(probs >= np.sort(probs)[-top_k], probs, 0)
        probs /= probs.sum()
    if top_p < 1:
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= top_p - 1e-6]] = 0
        probs /= probs.sum()
    probs = np.where(probs >= min_p * probs.max(), probs, 0)
    return probs / probs.sum()


def draws(logits, **settings):
    uniform = jax.random.uniform(jax.random.key(0), (DRAWS,))
    return jax.vmap(lambda u: sampling.choose(logits, u, **settings))(uniform)


SETTINGS = [
    dict(temperature=1.0),
    dict(temperature=0.6),
    dict(temperature=1.7, top_k=7),
    dict(temperature=1.0, top_p=0.8),
    dict(temperature=1.3, top_k=40, top_p=0.9),
    dict(temperature=1.0, min_p=0.2),
    dict(temperature=0.9, top_k=50, top_p=0.95, min_p=0.05),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [12, 300])  # less than a chunk; two chunks, the second mostly padding
def test_draws_follow_the_exact_distribution(settings, vocabulary):
    logits = 1.5 * jax.random.normal(jax.random.key(1), (vocabulary,))
    probs = exact(logits, **settings)
    ids = np.asarray(draws(logits, **settings).ids)
    counts = np.bincount(ids, minlength=vocabulary)
    assert counts[probs == 0].sum() == 0
    expected = probs * DRAWS
    rare = (expected < 5) & (expected > 0)  # pooled, as chi-square needs about five expected in a cell
    observed = np.append(counts[expected >= 5], counts[rare].sum())
    expected = np.append(expected[expected >= 5], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_log_probs_are_those_of_the_distribution_drawn_from_and_of_the_whole_one(settings):
    logits = 2.0 * jax.random.normal(jax.random.key(2), (300,))
    draw = jax.tree.map(lambda x: np.asarray(x[:500]), draws(logits, **settings))
    whole = exact(logits, temperature=settings["temperature"])
    np.testing.assert_allclose(draw.log_probs, np.log(exact(logits, **settings)[draw.ids]), atol=1e-5)
    np.testing.assert_allclose(draw.full_log_probs, np.log(whole[draw.ids]), atol=1e-5)


def test_temperature_divides_the_logits_not_the_log_probs():
    """Fault 25: of logits (2, 1, 0, −1) at 0.6 the first is −0.208; raw −0.440, divided too late −0.734."""
    draw = sampling.choose(jnp.array([2.0, 1.0, 0.0, -1.0]), jnp.float32(0.1), temperature=0.6)
    assert int(draw.ids) == 0
    np.testing.assert_allclose(draw.full_log_probs, -0.208, atol=1e-3)


def test_top_p_keeps_the_mass_it_names_and_renormalises():
    """Fault 27: (.5, .3, .15, .05) at top_p .8 becomes (.625, .375); the trainer's ratio is .8 throughout."""
    logits = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))
    for uniform, token, prob in [(0.62, 0, 0.625), (0.63, 1, 0.375), (1.0, 1, 0.375)]:
        draw = sampling.choose(logits, jnp.float32(uniform), temperature=1.0, top_p=0.8)
        assert int(draw.ids) == token
        np.testing.assert_allclose(np.exp(draw.log_probs), prob, atol=1e-6)
        np.testing.assert_allclose(np.exp(draw.full_log_probs - draw.log_probs), 0.8, atol=1e-6)


def test_settings_as_arrays_draw_the_same_tokens():
    logits = jax.random.normal(jax.random.key(3), (4, 300))
    uniform = jax.random.uniform(jax.random.key(4), (4,))
    constants = dict(temperature=0.7, top_p=0.9, min_p=0.01)
    arrays = {name: jnp.float32(value) for name, value in constants.items()}
    by_constant = sampling.choose(logits, uniform, **constants, top_k=9)
    by_array = jax.jit(lambda a: sampling.choose(logits, uniform, **a, top_k=9))(arrays)
    np.testing.assert_array_equal(by_constant.ids, by_array.ids)
    np.testing.assert_allclose(by_constant.log_probs, by_array.log_probs, atol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-24, 1.0])
@pytest.mark.parametrize("position", [0, 255, 256, 299])
def test_a_token_of_probability_zero_is_never_drawn(uniform, position):
    """Everything forbidden but one token: at both ends of the unit interval, that token it is."""
    logits = jnp.full((300,), -jnp.inf).at[position].set(3.0)
    draw = sampling.choose(logits, jnp.float32(uniform), temperature=1.0)
    assert int(draw.ids) == position
    assert float(draw.log_probs) == 0.0


def test_underflowing_and_forbidden_tokens_are_never_drawn_at_any_uniform():
    logits = jax.random.normal(jax.random.key(5), (1000,)).at[::3].set(-jnp.inf).at[1::3].set(-200.0)
    ids = np.asarray(draws(logits, temperature=1.0).ids)
    assert (ids % 3 == 2).all()


def test_temperature_zero_is_greedy():
    logits = jax.random.normal(jax.random.key(6), (5, 300))
    draw = sampling.choose(logits, jnp.full((5,), 0.99), temperature=0.0, top_p=0.5)
    np.testing.assert_array_equal(draw.ids, jnp.argmax(logits, -1))
    np.testing.assert_array_equal(draw.log_probs, np.zeros(5))
    full = jnp.take_along_axis(jax.nn.log_softmax(logits), draw.ids[:, None], 1)[:, 0]
    np.testing.assert_allclose(draw.full_log_probs, full, atol=1e-6)


def test_adjusted_logits_are_drawn_from_and_the_full_log_prob_ignores_them():
    logits = jax.random.normal(jax.random.key(7), (300,))
    adjusted = logits.at[17].add(50.0)
    draw = sampling.choose(logits, jnp.float32(0.5), temperature=0.8, adjusted=adjusted)
    assert int(draw.ids) == 17
    np.testing.assert_allclose(draw.log_probs, 0.0, atol=1e-6)
    np.testing.assert_allclose(draw.full_log_probs, jax.nn.log_softmax(logits / 0.8)[17], atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_boundary_helper_agrees_with_the_draws(settings):
    """Moved by nearly the distance to its boundary, a number draws the same token; a little more, another."""
    logits = jax.random.normal(jax.random.key(8), (300,))
    probs = exact(logits, **settings)
    choose = jax.vmap(lambda u: sampling.choose(logits, u, **settings).ids)
    uniform = np.asarray(jax.random.uniform(jax.random.key(9), (300,)))
    ids = np.asarray(choose(uniform))
    distance = np.array([boundary_distance(probs, u, token) for u, token in zip(uniform, ids, strict=True)])
    assert (distance > -1e-6).all()
    clear = (distance > 1e-4) & (uniform - 1.1 * distance > 0) & (uniform + 1.1 * distance < 1)
    down, up = (np.asarray(choose(uniform + step * distance)) for step in (-0.9, 0.9))
    np.testing.assert_array_equal(down[clear], ids[clear])
    np.testing.assert_array_equal(up[clear], ids[clear])
    down, up = (np.asarray(choose(uniform + step * distance)) for step in (-1.1, 1.1))
    assert ((down != ids) | (up != ids))[clear].all()


@pytest.mark.parametrize(("target", "index"), [(-1e-9, 1), (0.0, 1), (0.4, 1), (0.5, 3), (1.0, 3), (1.1, 3)])
def test_rounding_of_the_target_never_lands_on_a_token_without_mass(target, index):
    """The target inside a chunk is a difference of sums: it may come out below 0 or above the chunk's
    mass.
    """
    mass = jnp.array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert int(sampling._first_exceeding(mass, jnp.float32(target))) == index
