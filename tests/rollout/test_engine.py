"""The engine's promises: right log-probabilities, reproducible completions, stops that are data."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models.config import LoraConfig
from grpo_jax.rollout import NativeEngine, Sampling, decode
from grpo_jax.rollout.keys import completion_keys, uniforms
from grpo_jax.types import STOPPED, TRUNCATED
from tests.rollout.tiny import CONFIG, PROMPTS, completions, full_forward, log_probs, model, nearest_boundary

KEY = jax.random.key(7)
SAMPLING = Sampling(max_tokens=12, group_size=4, stop_ids=(0, 11))


@pytest.fixture(scope="module")
def engine():
    return make_engine()


def make_engine(config=CONFIG):
    graphdef, params = model(config)
    engine = NativeEngine(graphdef, max_prompt_length=8)
    engine.load(params)
    return engine


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, layer_windows=(0, 4), qk_norm=True, tied_embeddings=False),
        replace(CONFIG, num_kv_heads=1, qkv_bias=True, lora=LoraConfig(rank=2, alpha=2.0)),
    ],
    ids=["plain", "windows", "one kv head, LoRA"],
)
@pytest.mark.parametrize(
    "sampling",
    [
        SAMPLING,
        replace(SAMPLING, temperature=0.6),
        replace(SAMPLING, temperature=1.5),
        replace(SAMPLING, top_k=5, top_p=0.9),
    ],
    ids=["temperature 1", "temperature 0.6", "temperature 1.5", "truncated"],
)
def test_cached_decode_equals_the_full_forward(config, sampling):
    """Over ragged rows, pad id = stop id = 0, and whatever was cut off when sampling. Fault 26: the
    log-probabilities are those after the temperature.
    """
    graphdef, params = model(config)
    rollout = make_engine(config).generate(PROMPTS, sampling=sampling, key=KEY)
    assert len(set(rollout.completion_lengths)) > 2
    exists = np.arange(sampling.max_tokens) < rollout.completion_lengths[:, None]
    expected = log_probs(
        full_forward(graphdef, params, rollout), rollout.completion_ids, sampling.temperature
    )
    np.testing.assert_allclose(rollout.sampler_full_log_probs[exists], expected[exists], atol=1e-5)
    gap = rollout.sampler_log_probs - rollout.sampler_full_log_probs
    assert (gap[exists] > 1e-3).any() == sampling.truncated
    assert (rollout.sampler_log_probs[~exists] == 0).all()
    assert (rollout.sampler_full_log_probs[~exists] == 0).all()


def test_every_token_is_the_one_its_uniform_number_picks(engine):
    """The tokens themselves, recomputed from the full forward pass and the named folds of the key."""
    graphdef, params = model()
    rollout = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    numbers = all_uniforms(KEY, len(PROMPTS), SAMPLING)
    assert (nearest_boundary(full_forward(graphdef, params, rollout), rollout, numbers) > -1e-5).all()


def test_a_sampled_pad_id_is_a_token(engine):
    """Padding is 0 as well; only lengths tell them apart."""
    graphdef, params = model()
    rollout = engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=()), key=KEY)
    assert (rollout.completion_ids == 0).any()
    assert (rollout.completion_lengths == SAMPLING.max_tokens).all()
    assert (rollout.stop_reason == TRUNCATED).all()
    expected = log_probs(full_forward(graphdef, params, rollout), rollout.completion_ids)
    np.testing.assert_allclose(rollout.sampler_log_probs, expected, atol=1e-5)


def test_pad_and_stop_may_be_the_same_id(engine):
    """Fault 33: with pad = eos the stop token is a token, with a log-probability; what follows it is not."""
    rollout = engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=(0,)), key=KEY)
    stopped = rollout.stop_reason == STOPPED
    assert stopped.any() and not stopped.all()
    last = np.arange(len(stopped)), rollout.completion_lengths - 1
    np.testing.assert_array_equal(rollout.completion_ids[last] == 0, stopped)
    exists = np.arange(SAMPLING.max_tokens) < rollout.completion_lengths[:, None]
    assert (rollout.sampler_log_probs[exists] < 0).all()
    assert (rollout.sampler_log_probs[~exists] == 0).all()


def test_the_amount_of_padding_changes_no_log_prob():
    """Fault 31: positions count a sequence's own tokens, whatever the width it is padded to."""
    graphdef, params = model()
    narrow, wide = (
        NativeEngine(graphdef, max_prompt_length=width, fixed_shapes=True, slots=8) for width in (6, 50)
    )
    narrow.load(params), wide.load(params)
    one, other = (e.generate(PROMPTS, sampling=SAMPLING, key=KEY) for e in (narrow, wide))
    np.testing.assert_array_equal(one.completion_ids, other.completion_ids)
    np.testing.assert_allclose(one.sampler_log_probs, other.sampler_log_probs, atol=1e-5)


def test_a_bfloat16_model_reports_float32_log_probs():
    """Fault 30: rounded to bfloat16 they would be off by up to 0.4 %; they are those of float32 logits."""
    config = replace(CONFIG, dtype="bfloat16", param_dtype="bfloat16")
    graphdef, params = model(config)
    rollout = make_engine(config).generate(PROMPTS, sampling=SAMPLING, key=KEY)
    assert rollout.sampler_log_probs.dtype == rollout.sampler_full_log_probs.dtype == np.float32
    exists = np.arange(SAMPLING.max_tokens) < rollout.completion_lengths[:, None]
    got = rollout.sampler_full_log_probs[exists]
    assert (got != got.astype(jnp.bfloat16).astype(np.float32)).mean() > 0.9
    expected = log_probs(full_forward(graphdef, params, rollout), rollout.completion_ids)[exists]
    gap = np.abs(got - expected)
    print(f"bfloat16: gap to the full forward {gap.mean():.2g} mean, {gap.max():.2g} largest")
    assert gap.max() < 0.1  # the blocks' own rounding: another order of sums is another bfloat16


def test_sampling_twice_is_the_same_and_another_step_is_not(engine):
    step = jax.random.fold_in(KEY, 1)
    first, again, other = (engine.generate(PROMPTS, sampling=SAMPLING, key=k) for k in (KEY, KEY, step))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert completions(first) != completions(other)


def test_the_samples_of_a_group_differ(engine):
    """Fault 51: one key for all would give a group without variance."""
    rollout = engine.generate([[3, 1, 4]] * 2, sampling=SAMPLING, key=KEY)
    assert len({tuple(c) for c in completions(rollout)}) > 5


def test_slots_and_neighbours_change_no_completion(engine):
    """At one compiled shape: prompts reversed, and with other prompts beside them.

    The tokens are the same, bit for bit. Their log-probs are to the last bit or two: with jax 0.12, XLA's CPU
    matrix products may round a row differently by where in the batch it stands.
    """
    rollout = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    order = [4, 3, 2, 1, 0]
    moved = engine.generate([PROMPTS[i] for i in order], sampling=SAMPLING, key=KEY, prompt_indices=order)
    rows = np.arange(20).reshape(5, 4)[order].ravel()
    others = [PROMPTS[0], [9, 9, 9], [1], [2, 3], PROMPTS[4]]
    neighbours = engine.generate(others, sampling=SAMPLING, key=KEY)
    for name, same in {
        "completion_ids": np.testing.assert_array_equal,
        "completion_lengths": np.testing.assert_array_equal,
        "sampler_log_probs": partial(np.testing.assert_allclose, atol=2e-6),
        "sampler_full_log_probs": partial(np.testing.assert_allclose, atol=2e-6),
    }.items():
        expected = getattr(rollout, name)
        same(getattr(moved, name), expected[rows])
        same(getattr(neighbours, name)[:4], expected[:4])
        same(getattr(neighbours, name)[-4:], expected[-4:])


def test_another_batch_size_changes_no_completion_that_is_clear_of_boundaries(engine):
    graphdef, params = model()
    rollout = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    numbers = all_uniforms(KEY, len(PROMPTS), SAMPLING)
    clear = nearest_boundary(full_forward(graphdef, params, rollout), rollout, numbers) > 1e-4
    assert clear.mean() > 0.8
    tokens = completions(rollout)
    for place, prompt in enumerate(PROMPTS):
        alone = engine.generate([prompt], sampling=SAMPLING, key=KEY, prompt_indices=[place])
        assert (alone.group_ids == 0).all()
        for sample, completion in enumerate(completions(alone)):
            if clear[4 * place + sample]:
                assert completion == tokens[4 * place + sample]


@pytest.mark.parametrize("place", [0, 5, 11], ids=["first token", "middle", "last allowed token"])
def test_a_stop_ends_the_completion_it_is_the_last_token_of(engine, place):
    """Noise depends on key and position alone, so stopping can only cut what unstopped sampling gives."""
    unstopped = completions(engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=()), key=KEY))
    stop = unstopped[0][place]
    stopped = engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=(stop,)), key=KEY)
    for long, short, reason in zip(unstopped, completions(stopped), stopped.stop_reason, strict=True):
        assert short == (long[: long.index(stop) + 1] if stop in long else long)
        assert reason == (STOPPED if stop in long else TRUNCATED)
    assert len(completions(stopped)[0]) == unstopped[0].index(stop) + 1


def test_two_stops_at_once(engine):
    """Two ids, met at the same step by two completions; whichever id comes first ends each of the others."""
    unstopped = completions(engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=()), key=KEY))
    stops = (unstopped[0][3], next(c[3] for c in unstopped if c[3] != unstopped[0][3]))
    stopped = completions(engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=stops), key=KEY))
    for long, short in zip(unstopped, stopped, strict=True):
        end = next((t + 1 for t, token in enumerate(long) if token in stops), len(long))
        assert short == long[:end]


def test_stop_ids_change_between_calls_without_another_compilation(engine):
    """Section 0: a list frozen at the first trace runs past the stops of the second."""
    first = engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=(5,)), key=KEY)
    programs = compiled()
    second = engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=(9, 2, 17)), key=KEY)
    assert compiled() == programs
    assert all(5 not in c[:-1] for c in completions(first))
    assert all(not {9, 2, 17} & set(c[:-1]) for c in completions(second))
    assert any(5 in c for c in completions(second))


def test_several_stop_ids_and_a_stop_exactly_at_the_limit(engine):
    """Fault 32: with stops {2, 5}, a completion ending in either is finished, whatever its length."""
    rollout = engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=(2, 5)), key=KEY)
    for completion, reason in zip(completions(rollout), rollout.stop_reason, strict=True):
        assert reason == (STOPPED if completion[-1] in (2, 5) else TRUNCATED)


def test_decoding_ends_when_all_completions_have(engine):
    """Every token a stop: no step beyond the first token, which needs none."""
    engine.generate(PROMPTS, sampling=replace(SAMPLING, stop_ids=tuple(range(23))), key=KEY)
    assert engine.work.steps == 0
    assert engine.work.tokens == 20


def test_greedy_takes_the_likeliest_token_and_ignores_the_key(engine):
    graphdef, params = model()
    greedy = replace(SAMPLING, temperature=0.0)
    rollout = engine.generate(PROMPTS, sampling=greedy, key=KEY)
    other = engine.generate(PROMPTS, sampling=greedy, key=jax.random.key(8))
    assert completions(rollout) == completions(other)
    logits = full_forward(graphdef, params, rollout)
    exists = np.arange(SAMPLING.max_tokens) < rollout.completion_lengths[:, None]
    np.testing.assert_array_equal(rollout.completion_ids[exists], logits.argmax(-1)[exists])


def test_rows_are_prompt_major_and_hold_the_very_prompt_ids(engine):
    rollout = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    np.testing.assert_array_equal(rollout.group_ids, np.repeat(np.arange(5), 4))
    for row, group in enumerate(rollout.group_ids):
        assert rollout.prompt_ids[row, : rollout.prompt_lengths[row]].tolist() == PROMPTS[group]
    assert rollout.prompt_ids.shape == (20, 8)
    assert rollout.completion_ids.shape == (20, 12)


WRONG = [
    (dict(temperature=-1.0), "temperature"),
    (dict(top_p=0.0), "top_p"),
    (dict(top_p=1.5), "top_p"),
    (dict(top_k=-1), "top_k"),
    (dict(min_p=2.0), "min_p"),
    (dict(max_tokens=0), "max_tokens"),
    (dict(group_size=0), "group_size"),
    (dict(stop_ids=(-1,)), "stop_ids"),
    (dict(temperature=0.0, top_k=5), "temperature"),
    (dict(temperature=float("inf"), forbidden_ids=(1,)), "temperature"),
    (dict(repetition_penalty=float("inf")), "repetition_penalty"),
    (dict(logit_bias={1: float("inf")}), "logit_bias"),
    (dict(logit_bias={1: float("nan")}), "logit_bias"),
    (dict(logit_bias={1: 2.0}, forbidden_ids=(1,)), "logit_bias"),
    (dict(stop_strings="end"), "stop_strings"),
    (dict(stop_strings=("",)), "stop_strings"),
]


@pytest.mark.parametrize(("settings", "name"), WRONG, ids=str)
def test_impossible_settings_are_errors_that_name_the_field(settings, name):
    with pytest.raises(ValueError, match=f"sampling.{name} is"):
        Sampling(**settings)


def test_wrong_calls_are_errors_that_say_what_was_expected(engine):
    graphdef, _ = model()
    with pytest.raises(ValueError, match="no parameters"):
        NativeEngine(graphdef, max_prompt_length=8).generate(PROMPTS, sampling=SAMPLING, key=KEY)
    with pytest.raises(ValueError, match=r"prompt_ids\[1\] has 9 tokens; expected at most .* 8"):
        engine.generate([[1], [2] * 9], sampling=SAMPLING, key=KEY)
    with pytest.raises(ValueError, match=r"prompt_ids\[1\] is empty"):
        engine.generate([[1], []], sampling=SAMPLING, key=KEY)
    for token in (CONFIG.vocab_size, -1):
        with pytest.raises(
            ValueError, match=rf"prompt_ids\[2\] has token {token}; expected ids from 0 to below"
        ):
            engine.generate([[1], [2], [3, token]], sampling=SAMPLING, key=KEY)
    with pytest.raises(ValueError, match="prompt_ids is empty"):
        engine.generate([], sampling=SAMPLING, key=KEY)
    with pytest.raises(ValueError, match="prompt_indices has 1 entries; expected 5"):
        engine.generate(PROMPTS, sampling=SAMPLING, key=KEY, prompt_indices=[1])
    with pytest.raises(ValueError, match="key is of the generator"):
        engine.generate(PROMPTS, sampling=SAMPLING, key=jax.random.key(0, impl="rbg"))


def all_uniforms(key, prompts, sampling):
    """[N, T]: the number behind every token, from the named folds."""
    keys = completion_keys(key, jnp.arange(prompts), jnp.arange(sampling.group_size)).reshape(-1)
    positions = [jnp.full(keys.shape, t) for t in range(sampling.max_tokens)]
    return np.stack([uniforms(keys, p) for p in positions], axis=1)


def compiled():
    programs = (decode.prefill, decode.admit, decode.decode, decode.shrink, decode.widen)
    return sum(program._cache_size() for program in programs)
