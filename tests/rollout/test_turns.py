"""Conversations: turns and answers in one completion, drawn as if it had never been interrupted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.rollout import NativeEngine, RecordingEngine, ReplayEngine, Sampling
from grpo_jax.rollout.keys import completion_keys, uniforms
from grpo_jax.rollout.turns import generate_turns
from grpo_jax.types import STOPPED, TRUNCATED
from tests.rollout.boundaries import boundary_distance
from tests.rollout.tiny import PROMPTS, completions, full_forward, log_probs, model

KEY = jax.random.key(11)
T, G, P = 12, 3, 6
SAMPLING = Sampling(max_tokens=T, group_size=G, stop_ids=tuple(range(0, 23, 3)))
ANSWER = [21, 1, 21]


@pytest.fixture(scope="module")
def engine():
    graphdef, params = model()
    engine = NativeEngine(graphdef, max_prompt_length=P + T)
    engine.load(params)
    return engine


def talk(engine, reply, **changes):
    options = {"sampling": SAMPLING, "key": KEY, "max_turns": 3, "prompt_size": P}
    return generate_turns(engine, PROMPTS, reply=reply, **(options | changes))


def answer_two_of_three(n, turn_ids):
    return None if n % 3 == 2 else ANSWER


@pytest.fixture(scope="module")
def conversations(engine):
    return talk(engine, answer_two_of_three)


def parts(rollout):
    """Every completion as ([ids, …], …): runs of sampled ids and of the others."""
    for ids, sampled in zip(completions(rollout), rollout.sampled, strict=True):
        cuts = np.flatnonzero(np.diff(sampled[: len(ids)])) + 1
        yield [part.tolist() for part in np.split(np.array(ids), cuts)]


def test_turns_and_answers_are_one_completion(engine, conversations):
    first = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    assert conversations.prompt_ids.shape == (15, P)
    np.testing.assert_array_equal(conversations.prompt_ids, first.prompt_ids[:, :P])
    np.testing.assert_array_equal(conversations.group_ids, np.repeat(np.arange(5), G))
    counts = set()
    for n, (said, turn) in enumerate(zip(parts(conversations), completions(first), strict=True)):
        assert said[0] == turn
        assert all(part == ANSWER for part in said[1::2])
        assert all(part[-1] in SAMPLING.stop_ids for part in said[:-1:2])
        assert len(said) % 2 == 1  # the last word is the policy's
        assert n % 3 != 2 or len(said) == 1
        counts.add(len(said))
    assert counts == {1, 3, 5}


def test_prompts_keep_their_conversations_wherever_they_stand(engine, conversations):
    """As when each host samples a share of them."""
    options = {"sampling": SAMPLING, "key": KEY, "max_turns": 3, "prompt_size": P}
    part = generate_turns(engine, PROMPTS[3:], reply=answer_two_of_three, prompt_indices=[3, 4], **options)
    assert completions(part) == completions(conversations)[3 * G :]


def test_log_probs_are_those_of_the_trainer_and_nothing_where_the_policy_wrote_nothing(conversations):
    graphdef, params = model()
    expected = log_probs(full_forward(graphdef, params, conversations), conversations.completion_ids)
    sampled = conversations.sampled
    for name in ("sampler_log_probs", "sampler_full_log_probs"):
        np.testing.assert_allclose(getattr(conversations, name)[sampled], expected[sampled], atol=1e-5)
        assert (getattr(conversations, name)[~sampled] == 0).all()


def test_every_token_is_the_one_that_the_number_of_its_place_in_the_completion_picks(conversations):
    """A turn boundary moves no noise: a token's number is that of (completion key, position)."""
    graphdef, params = model()
    logits = full_forward(graphdef, params, conversations)
    keys = completion_keys(KEY, jnp.arange(5), jnp.arange(G)).reshape(-1)
    numbers = np.stack([uniforms(keys, jnp.full(keys.shape, t)) for t in range(T)], axis=1)
    later_turns = 0
    for n, t in np.argwhere(conversations.sampled):
        probs = np.exp(logits[n, t].astype(np.float64) - logits[n, t].max())
        token = conversations.completion_ids[n, t]
        assert boundary_distance(probs / probs.sum(), numbers[n, t], token) > -1e-5
        later_turns += not conversations.sampled[n, :t].all()
    assert later_turns > 20


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_completion_that_is_interrupted_goes_on_as_it_would_have(engine, cut):
    """Given its own first tokens as history, and which completion it is."""
    sampling = Sampling(max_tokens=T, group_size=G)
    whole = engine.generate(PROMPTS, sampling=sampling, key=KEY)
    places = [(b, g) for b in range(len(PROMPTS)) for g in range(G)]
    rest = engine.generate(
        [PROMPTS[b] + ids[:cut] for (b, _), ids in zip(places, completions(whole), strict=True)],
        sampling=Sampling(max_tokens=T),
        key=KEY,
        prompt_indices=[b for b, _ in places],
        sample_indices=[g for _, g in places],
        start_positions=[cut] * len(places),
        max_tokens=[T - cut] * len(places),
    )
    assert completions(rest) == [ids[cut:] for ids in completions(whole)]
    np.testing.assert_allclose(
        rest.sampler_log_probs[:, : T - cut], whole.sampler_log_probs[:, cut:], atol=1e-5
    )


def test_a_conversation_without_answers_is_a_completion(engine):
    alone = engine.generate(PROMPTS, sampling=SAMPLING, key=KEY)
    silent = talk(engine, lambda n, ids: None)
    assert completions(silent) == completions(alone)
    np.testing.assert_array_equal(silent.stop_reason, alone.stop_reason)
    assert silent.sampled.sum() == alone.completion_lengths.sum()


def test_what_was_to_go_on_is_truncated_at_the_last_turn_and_at_the_last_token(engine):
    """An answer that no turn can follow is not kept, so that no token is there for nothing."""
    once = talk(engine, lambda n, ids: ANSWER, max_turns=1)
    assert once.sampled.sum() == once.completion_lengths.sum()
    assert (once.stop_reason == TRUNCATED).all()
    endless = talk(engine, lambda n, ids: ANSWER, max_turns=99)
    assert (endless.stop_reason == TRUNCATED).all()
    assert (endless.completion_lengths <= T).all() and (endless.completion_lengths >= T - 3).all()
    last = np.array(
        [row[length - 1] for row, length in zip(endless.sampled, endless.completion_lengths, strict=True)]
    )
    assert last.all()


def test_the_environment_hears_only_turns_that_ended_by_themselves(engine):
    heard = []
    sampling = Sampling(max_tokens=T, group_size=G, stop_ids=(0, 11))
    rollout = talk(engine, lambda n, ids: heard.append((n, ids)), sampling=sampling, max_turns=2)
    stopped = [n for n, reason in enumerate(rollout.stop_reason) if reason == STOPPED]
    assert [n for n, _ in heard] == stopped and len(stopped) < 15
    assert [ids for _, ids in heard] == [completions(rollout)[n] for n in stopped]


def test_an_answer_without_tokens_is_an_error(engine):
    with pytest.raises(ValueError, match="answer in conversation 0 has no tokens; None ends it"):
        talk(engine, lambda n, ids: [])


def test_turns_are_recorded_and_played_back(engine, conversations, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    recorded = talk(RecordingEngine(engine, path), answer_two_of_three)
    again = talk(ReplayEngine(path, max_prompt_length=P + T), answer_two_of_three)
    for other in (recorded, again):
        jax.tree.map(np.testing.assert_array_equal, other, conversations)


def test_which_completion_goes_on_must_be_said_for_each_prompt(engine):
    alone = Sampling(max_tokens=4)
    with pytest.raises(
        ValueError, match=r"sample_indices with sampling\.group_size 3; expected a group_size of 1"
    ):
        engine.generate(PROMPTS, sampling=SAMPLING, key=KEY, sample_indices=[0] * 5)
    with pytest.raises(ValueError, match=r"start_positions is \[1\]; expected 5 numbers ≥ 0"):
        engine.generate(PROMPTS, sampling=alone, key=KEY, start_positions=[1])
