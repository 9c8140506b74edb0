"""Slots, refills and growing caches change no completion; penalties, biases and stop strings do what they
say.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.types import STOPPED
from tests.rollout.test_engine import all_uniforms
from tests.rollout.tiny import CONFIG, PROMPTS, completions, full_forward, log_probs, model, nearest_boundary

KEY = jax.random.key(11)
SAMPLING = Sampling(max_tokens=40, group_size=4, stop_ids=(0,))
LONG = Sampling(max_tokens=75, group_size=4, stop_ids=(0,))
MOST_GROWTH = 30_000
"""Bytes a round: one forgotten cache of these eight slots is larger."""
FIELDS = (
    "completion_ids",
    "completion_lengths",
    "sampler_log_probs",
    "sampler_full_log_probs",
    "stop_reason",
)


def make_engine(config=CONFIG, **settings):
    graphdef, params = model(config)
    engine = NativeEngine(graphdef, max_prompt_length=20, **settings)
    engine.load(params)
    return engine


@pytest.fixture(scope="module")
def fixed():
    """Six slots for twenty completions, a look at every third step, one size of everything."""
    return make_engine(slots=6, chunk=3, fixed_shapes=True)


@pytest.fixture(scope="module")
def reference():
    return make_engine().generate(PROMPTS, sampling=SAMPLING, key=KEY)


@pytest.fixture(scope="module")
def clear(reference):
    """Rows whose draws are all clear of a boundary by 1e-4."""
    graphdef, params = model()
    numbers = all_uniforms(KEY, len(PROMPTS), SAMPLING)
    rows = nearest_boundary(full_forward(graphdef, params, reference), reference, numbers) > 1e-4
    assert rows.mean() > 0.6
    return rows


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (CONFIG, dict(slots=6, chunk=3)),
        (replace(CONFIG, layer_windows=(0, 5)), dict(slots=6, chunk=5)),
        (CONFIG, dict(slots=64, chunk=64)),
        (CONFIG, dict(slots=6, chunk=3, fixed_shapes=True)),
        (CONFIG, dict(slots=16, chunk=16, positions_first=True)),
        (replace(CONFIG, layer_windows=(0, 5)), dict(slots=6, chunk=5, positions_first=True)),
    ],
    ids=[
        "refills",
        "refills, windows",
        "shrinking, growing",
        "fixed shapes",
        "TPU's order",
        "TPU's order, windows",
    ],
)
def test_refilled_slots_agree_with_the_full_forward(config, settings):
    graphdef, params = model(config)
    rollout = make_engine(config, **settings).generate(PROMPTS * 2, sampling=LONG, key=KEY)
    assert rollout.completion_lengths.max() > 66  # more columns than a cache begins with
    exists = np.arange(LONG.max_tokens) < rollout.completion_lengths[:, None]
    expected = log_probs(full_forward(graphdef, params, rollout), rollout.completion_ids)
    np.testing.assert_allclose(rollout.sampler_full_log_probs[exists], expected[exists], atol=1e-5)
    np.testing.assert_array_equal(rollout.sampler_log_probs, rollout.sampler_full_log_probs)


@pytest.mark.parametrize("settings", [dict(slots=6, chunk=3), dict(slots=16), dict(slots=1)], ids=str)
def test_the_number_of_slots_changes_no_clear_completion(reference, clear, settings):
    rollout = make_engine(**settings).generate(PROMPTS, sampling=SAMPLING, key=KEY)
    for row in np.flatnonzero(clear):
        assert completions(rollout)[row] == completions(reference)[row]


def test_at_fixed_shapes_completions_are_bitwise_the_same_in_any_company(fixed):
    """Other slots, neighbours, refills, order and number of prompts; a longer prompt in the call; alone."""
    rollout = fixed.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    calls = [
        [4, 3, 2, 1, 0],
        [2, 0],
        [1],
        [0, 7, 8, 9, 1, 2, 3],
    ]
    longer = [*PROMPTS, [5], [6] * 20, [1, 2], [9] * 17, [3]]
    for indices in calls:
        other = fixed.generate(
            [longer[i] for i in indices], sampling=SAMPLING, key=KEY, prompt_indices=indices
        )
        for place, index in enumerate(indices):
            if index < len(PROMPTS):
                for name in FIELDS:
                    here, there = getattr(rollout, name), getattr(other, name)
                    np.testing.assert_array_equal(
                        there[4 * place : 4 * place + 4], here[4 * index : 4 * index + 4]
                    )
    assert len({sizes for program, sizes in fixed.programs if program == "decode"}) == 1


def test_slots_are_refilled_before_the_longest_is_done():
    """Eight slots, 32 completions of which one in eight is long: far fewer steps than batch after batch."""
    engine = make_engine(slots=8)
    limits = np.tile([40, 2, 2, 2, 2, 2, 2, 2], 4).reshape(8, 4)
    engine.generate([[1, 2]] * 8, sampling=replace(SAMPLING, stop_ids=()), key=KEY, max_tokens=limits)
    assert engine.work.tokens == limits.sum()
    assert engine.work.steps < 60  # four batches of eight would take 4 x 39


def test_max_tokens_of_single_prompts_and_completions(reference):
    engine = make_engine()
    limits = np.arange(1, 21).reshape(5, 4)
    unstopped = replace(SAMPLING, stop_ids=())
    whole = completions(engine.generate(PROMPTS, sampling=unstopped, key=KEY))
    cut = completions(engine.generate(PROMPTS, sampling=unstopped, key=KEY, max_tokens=limits))
    assert cut == [c[:n] for c, n in zip(whole, limits.ravel(), strict=True)]
    cut = completions(engine.generate(PROMPTS, sampling=unstopped, key=KEY, max_tokens=[3, 1, 4, 1, 5]))
    assert [len(c) for c in cut] == np.repeat([3, 1, 4, 1, 5], 4).tolist()
    with pytest.raises(ValueError, match=r"max_tokens has shape \(4,\); expected \(5,\) or \(5, 4\)"):
        engine.generate(PROMPTS, sampling=SAMPLING, key=KEY, max_tokens=[1] * 4)
    with pytest.raises(ValueError, match=r"max_tokens lie in 1..41; expected 1..40"):
        engine.generate(PROMPTS, sampling=SAMPLING, key=KEY, max_tokens=[1, 1, 1, 1, 41])


def test_forbidden_ids_are_never_drawn_and_the_full_log_probs_do_not_know_of_them():
    graphdef, params = model()
    sampling = replace(SAMPLING, forbidden_ids=(0, 3, 7), logit_bias={5: 2.0})
    rollout = make_engine().generate(PROMPTS, sampling=sampling, key=KEY)
    assert not {0, 3, 7} & {token for c in completions(rollout) for token in c}
    logits = full_forward(graphdef, params, rollout).copy()
    whole = log_probs(logits, rollout.completion_ids)
    np.testing.assert_allclose(rollout.sampler_full_log_probs, whole, atol=1e-5)
    logits[..., [0, 3, 7]] = -np.inf
    logits[..., 5] += 2.0
    drawn_from = log_probs(logits, rollout.completion_ids)
    np.testing.assert_allclose(rollout.sampler_log_probs, drawn_from, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_the_repetition_penalty_is_that_of_tokens_seen_in_prompt_and_completion(temperature):
    """Recomputed token by token from the definition, over refilled slots."""
    graphdef, params = model()
    sampling = replace(SAMPLING, repetition_penalty=1.7, temperature=temperature)
    rollout = make_engine(slots=6, chunk=3).generate(PROMPTS, sampling=sampling, key=KEY)
    logits = full_forward(graphdef, params, rollout)
    for row, completion in enumerate(completions(rollout)):
        for t, token in enumerate(completion):
            prompt = rollout.prompt_ids[row, : rollout.prompt_lengths[row]].tolist()
            seen = list({*prompt, *completion[:t]})
            penalised = logits[row, t].copy()
            penalised[seen] = np.where(penalised[seen] > 0, penalised[seen] / 1.7, penalised[seen] * 1.7)
            if temperature == 0:
                assert token == penalised.argmax()
            else:
                expected = log_probs(penalised[None], np.array([token]))[0]
                np.testing.assert_allclose(rollout.sampler_log_probs[row, t], expected, atol=1e-5)


def letters(ids):
    return "".join("abcdefghijklmnopqrstuvw"[i] for i in ids)


def syllables(ids):
    """Three letters a token, so that texts cross token boundaries: token 0 is "aab", 1 "bbc", …"""
    return "".join(letters([i, i, (i + 1) % 23]) for i in ids)


@pytest.mark.parametrize("to_text", [letters, syllables])
def test_stop_strings_end_a_completion_with_the_token_that_completes_one(to_text):
    engine = make_engine(slots=6, chunk=5, to_text=to_text)
    unstopped = completions(engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=()), key=KEY))
    text = to_text(unstopped[0])
    for stop_strings in [(text[4:8],), (text[0],), (text[-1],), (text[7:9], to_text(unstopped[1])[3:5])]:
        sampling = replace(SAMPLING, stop_ids=(), stop_strings=stop_strings)
        rollout = engine.generate(PROMPTS, sampling=sampling, key=KEY)
        for row, (long, short) in enumerate(zip(unstopped, completions(rollout), strict=True)):
            ends = [
                n for n in range(1, len(long) + 1) if any(stop in to_text(long[:n]) for stop in stop_strings)
            ]
            assert short == (long[: ends[0]] if ends else long)
            assert (rollout.stop_reason[row] == STOPPED) == bool(ends)
            assert (rollout.sampler_log_probs[row, len(short) :] == 0).all()


def test_a_stop_string_needs_text():
    with pytest.raises(ValueError, match="expected an engine made with to_text"):
        make_engine().generate(PROMPTS, sampling=replace(SAMPLING, stop_strings=("a",)), key=KEY)


@pytest.mark.parametrize("rounds", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_rounds_of_random_lengths_lose_no_slot_and_no_memory(rounds, record_property):
    """Through eight slots every group is answered once, to its lengths; over 300 rounds memory stays flat.

    The slope of the resident memory is by least squares over the second half: all is compiled by then.
    """
    engine = make_engine(slots=8, chunk=8)
    generator = np.random.default_rng(0)
    resident = []
    for step in range(rounds):
        limits = np.minimum(np.ceil(np.exp(generator.normal(1.0, 1.0, (6, 3)))), 12).astype(int)
        answered = []
        rollout = engine.generate(
            [*PROMPTS, [1] * int(generator.integers(1, 20))],
            sampling=Sampling(max_tokens=12, group_size=3),
            key=jax.random.fold_in(KEY, step),
            max_tokens=limits,
            on_group=lambda place, rows, answered=answered: answered.append(place),
        )
        assert sorted(answered) == list(range(6))
        np.testing.assert_array_equal(rollout.completion_lengths, limits.ravel())
        assert (rollout.sampler_log_probs[np.arange(12) < limits.reshape(-1, 1)] < 0).all()
        resident.append(resident_bytes())
    if rounds < 300:
        return
    half = resident[rounds // 2 :]
    slope = np.polyfit(np.arange(len(half)), half, 1)[0]
    print(
        f"RSS slope {slope:.0f} bytes a round; {half[0]} bytes at round {rounds // 2}, {half[-1]} at the end"
    )
    record_property("rss_slope_bytes_per_round", round(slope))
    assert slope < MOST_GROWTH, f"{slope:.0f} bytes a round"


def resident_bytes():
    """Of this process, as Linux counts pages."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
