"""Rollouts are drawn as the config says, and the sampler's log-probs are of the very distribution that was drawn from."""

import math
from dataclasses import fields, replace

import jax
import numpy as np
import pytest

from grpo_jax.config import LossConfig, RolloutConfig, SamplerCorrectionConfig, TrainConfig, WarmStartConfig
from grpo_jax.models.tokenizers import CharacterTokenizer, TransformersTokenizer
from grpo_jax.rollout import Sampling
from grpo_jax.training import collect, draws, loop, setup
from tests.models.tiny_tokenizers import EOT, IM_END, build
from tests.rollout.tiny import full_forward
from tests.tiny import tiny
from tests.training.test_loop import measured

CHARACTERS = CharacterTokenizer()
SETTINGS = {
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.3,
    "logit_bias": {20: 0.5, 30: -1.0},
    "forbidden_ids": (10, 11, 12),
}
FORBIDDEN = list(SETTINGS["forbidden_ids"])


def test_every_setting_that_a_config_has_reaches_the_sampler():
    options = RolloutConfig(**SETTINGS, group_size=6, stop_strings=("\n",))
    sampling = draws.sampling_of(options, tokenizer=CHARACTERS)
    common = {f.name for f in fields(Sampling)} & {f.name for f in fields(RolloutConfig)}
    assert common == {*SETTINGS, "group_size", "stop_strings"}
    for name in common:
        assert getattr(sampling, name) == getattr(options, name) != getattr(Sampling(), name)
    assert sampling.max_tokens == options.max_completion_length and sampling.stop_ids == CHARACTERS.stop_ids


def test_at_temperature_0_nothing_is_cut_off_and_the_rest_holds():
    greedy = draws.sampling_of(RolloutConfig(**SETTINGS), temperature=0.0, group_size=1)
    assert (greedy.top_k, greedy.top_p, greedy.min_p, greedy.group_size) == (0, 1.0, 0.0, 1)
    assert greedy.repetition_penalty == 1.3 and greedy.forbidden_ids == (10, 11, 12)


class Caller:
    """An environment whose turns end with a control token, or with a text."""

    stop_strings = ("<|eot|>", "</call>")


def test_a_control_token_stops_by_its_id_whoever_names_it():
    """Decoded text leaves control tokens out, so such a text would never stop anything."""
    tokenizer = TransformersTokenizer(build())
    options = RolloutConfig(stop_strings=("\n\n", "<|im_end|>"))
    sampling = draws.sampling_of(options, tokenizer=tokenizer, environment=Caller())
    assert sampling.stop_ids == (*tokenizer.stop_ids, IM_END, EOT)
    assert sampling.stop_strings == ("\n\n", "</call>")
    with pytest.raises(
        ValueError, match=r"rollout\.stop_strings: got '<\|eot\|>\\n', expected '<\|eot\|>' alone"
    ):
        draws.sampling_of(RolloutConfig(stop_strings=("<|eot|>\n",)), tokenizer=tokenizer)
    caller = Caller()
    caller.stop_strings = ("say <|eot|>",)
    with pytest.raises(ValueError, match=r"rollout\.environment: stop_strings: got 'say"):
        draws.sampling_of(RolloutConfig(), tokenizer=tokenizer, environment=caller)


def test_tokens_the_model_does_not_have_are_errors():
    def check(**options):
        draws.check_draws(RolloutConfig(**options), tokenizer=CHARACTERS, environment=None, vocab_size=20)

    check(forbidden_ids=(19,), logit_bias={18: -math.inf})
    with pytest.raises(
        ValueError, match=r"rollout\.forbidden_ids: got token 20, expected ids below .* of 20"
    ):
        check(forbidden_ids=(3, 20))
    with pytest.raises(ValueError, match=r"rollout\.logit_bias: got token 33, expected ids below"):
        check(logit_bias={33: 1.0})
    with pytest.raises(ValueError, match="got the whole vocabulary of 20 tokens, expected one left to draw"):
        check(forbidden_ids=tuple(range(19)), logit_bias={19: -math.inf})


def distribution(logits, seen):
    """[V] probabilities of one token by `SETTINGS`, in float64, by the definitions in the settings' docstrings."""
    logits = logits.astype(np.float64)
    penalty = SETTINGS["repetition_penalty"]
    logits = np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)
    for token, bias in SETTINGS["logit_bias"].items():
        logits[token] += bias
    logits[FORBIDDEN] = -np.inf
    logits /= SETTINGS["temperature"]
    logits[logits < np.sort(logits)[-SETTINGS["top_k"]]] = -np.inf
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= SETTINGS["top_p"]]] = 0
    probs[probs < SETTINGS["min_p"] * probs.max()] = 0
    return probs / probs.sum()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tiny(
        tmp_path_factory.mktemp("draws") / "run",
        warm_start=WarmStartConfig(steps=0),
        train=TrainConfig(steps=2),
        loss=LossConfig(sampler_correction=SamplerCorrectionConfig()),
    )
    rollout = replace(base.rollout, **SETTINGS, allow_truncated_sampling=True)
    return setup.prepare(replace(base, rollout=rollout))


def test_the_samplers_log_probs_are_those_of_what_was_drawn_from(run):
    """By the trainer's own forward pass: of the distribution as reshaped, and of the policy's at this temperature."""
    state = setup.initial_state(run)
    params = jax.tree.map(lambda x: 3 * x if x.ndim > 2 else x, state.params)  # or nothing would be cut off
    with collect.held(run, replace(state, params=params)):
        sampling = collect.sampling_of(run, temperature=SETTINGS["temperature"], group_size=4)
        rollout = collect.sample(run, run.train[:4], sampling, key=jax.random.key(1))
    logits = full_forward(run.policy.graphdef, params, rollout)
    checked = 0
    for row, length in enumerate(rollout.completion_lengths):
        history = rollout.prompt_ids[row, : rollout.prompt_lengths[row]].tolist()
        for t, token in enumerate(rollout.completion_ids[row, :length].tolist()):
            seen = np.isin(np.arange(logits.shape[-1]), history)
            probs = distribution(logits[row, t], seen)
            full = logits[row, t].astype(np.float64) / SETTINGS["temperature"]
            full -= np.log(np.exp(full - full.max()).sum()) + full.max()
            assert rollout.sampler_log_probs[row, t] == pytest.approx(np.log(probs[token]), abs=1e-4)
            assert rollout.sampler_full_log_probs[row, t] == pytest.approx(full[token], abs=1e-5)
            history.append(token)
            checked += (probs == 0).any() and token not in FORBIDDEN
    assert checked == rollout.completion_lengths.sum() > 30


def test_a_run_that_trains_on_them_agrees_with_its_trainer_and_says_what_corrects(run, capsys):
    loop.train(run)
    rows = measured(run.folder)[1:]
    assert len(rows) == 2 and max(row["sampler/log_prob_gap"] for row in rows) < 1e-5
    assert all(0 <= row["sampler/truncated_fraction"] <= 1 for row in rows)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "drawn from another distribution (top_k 40, top_p 0.95, min_p 0.05, repetition_penalty 1.3," in said
    )
    assert (
        "logit_bias, forbidden_ids)" in said and "weighs each token by policy / sampler, at most 2." in said
    )


def test_a_stop_string_ends_a_rollout_where_its_text_is_complete(tmp_path):
    """An untrained model writes a digit or a capital soon; nothing is sampled beyond it, in training and evaluation."""
    base = tiny(tmp_path / "run", warm_start=WarmStartConfig(steps=0), train=TrainConfig(steps=1))
    stops = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    run = setup.prepare(replace(base, rollout=replace(base.rollout, stop_strings=stops)))
    with collect.held(run, setup.initial_state(run)):
        sampling = collect.sampling_of(run, temperature=1.0, group_size=4)
        rollout = collect.sample(run, run.train[:8], sampling, key=jax.random.key(0))
    texts = [
        run.tokenizer.decode(ids[:length].tolist())
        for ids, length in zip(rollout.completion_ids, rollout.completion_lengths, strict=True)
    ]
    stopped = [text for text in texts if set(text) & set(stops)]
    assert len(stopped) > 4 and all(set(text[:-1]).isdisjoint(stops) for text in texts)
    loop.train(run)
    assert measured(run.folder)[-1]["sampler/log_prob_gap"] < 1e-5
