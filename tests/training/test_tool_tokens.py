"""What an environment wrote is read and never learnt: the gradient says so, under every rule."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax.losses import objective as objectives
from grpo_jax.losses import sampler
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.head import log_prob_and_entropy
from grpo_jax.training import batches, layouts, sharding
from grpo_jax.training.log_probs import make_log_probs
from grpo_jax.training.metrics import turn_metrics
from grpo_jax.training.update import make_supervised_update
from grpo_jax.types import Rollout
from tests.training.test_update import MODEL, RULES, SGD, state_of

GROUPS, G, P, T = 2, 4, 3, 8
N = GROUPS * G
GRAPHDEF, PARAMS = nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))
LOG_PROBS = make_log_probs(GRAPHDEF, temperature=1.0, kept_logits=16)


def objective_for(rule):
    """With every term there is: KL, entropy, and a correction that reads the sampler's log-probs."""
    return objectives.Objective(
        aggregation=RULES[rule], kl_coef=0.1, entropy_coef=0.01, sampler_correction=sampler.truncate
    )


def conversations() -> tuple[Rollout, np.ndarray]:
    """Turns of the policy around an answer of two tokens, at another place in every row; and advantages."""
    rng = np.random.default_rng(0)
    lengths = np.array([8, 6, 7, 5, 8, 4, 6, 7], np.int32)
    starts = np.array([2, 3, 1, 2, 5, 1, 2, 4])
    columns = np.arange(T)
    answer = (columns >= starts[:, None]) & (columns < starts[:, None] + 2)
    old = rng.normal(-3, 0.3, (N, T)).astype(np.float32)
    rollout = Rollout(
        prompt_ids=np.repeat(rng.integers(0, 29, (GROUPS, P)), G, 0).astype(np.int32),
        prompt_lengths=np.full(N, P, np.int32),
        completion_ids=rng.integers(0, 29, (N, T)).astype(np.int32),
        completion_lengths=lengths,
        stop_reason=np.zeros(N, np.int32),
        group_ids=np.repeat(np.arange(GROUPS), G).astype(np.int32),
        sampler_log_probs=np.where(answer, 0, old),
        sampler_full_log_probs=np.where(answer, 0, old),
        sampled=(columns < lengths[:, None]) & ~answer,
    )
    return rollout, np.array([1, -1, 0.5, -0.5, 2, -1, -0.5, -0.5], np.float32)


ROLLOUT, ADVANTAGES = conversations()
TOOL = ~ROLLOUT.sampled & (np.arange(T) < ROLLOUT.completion_lengths[:, None])


def batch():
    made = batches.policy_batch(ROLLOUT, advantages=ADVANTAGES, scored=np.ones(N, bool), mask_truncated=False)
    old = ROLLOUT.sampler_log_probs
    return jax.tree.map(jnp.asarray, replace(made, old_log_probs=old, ref_log_probs=old + 0.1))


def with_targets(params, batch, targets):
    """The policy's log-probs of other targets, while what it reads stays the batch's."""
    decoder = nnx.merge(GRAPHDEF, params)
    rows = layouts.plain(batch)
    hidden, _ = decoder(rows.ids, rows.positions, rows.attend)
    hidden = rows.predicting(hidden)
    return log_prob_and_entropy(decoder.unembedding, hidden, targets, temperature=1.0, keep_logits=False)


def weights_of(objective, batch):
    return objectives.weights(
        objective,
        advantages=batch.advantages,
        loss_mask=batch.loss_mask,
        group_ids=batch.group_ids,
        num_groups=GROUPS,
    )


def loss_of(objective, batch, weights, now, entropy):
    return objectives.loss(
        objective,
        log_probs=now,
        old_log_probs=batch.old_log_probs,
        loss_mask=batch.loss_mask,
        advantages=batch.advantages,
        weights=weights,
        entropy=entropy,
        ref_log_probs=batch.ref_log_probs,
        sampler_log_probs=batch.sampler_log_probs,
    )


@cache
def compiled_gradient(rule):
    """With respect to the parameters, of the whole objective, for a batch and its targets."""
    objective = objective_for(rule)

    def loss(params, batch, targets):
        terms = with_targets(params, batch, targets)
        return loss_of(objective, batch, weights_of(objective, batch), *terms)[0]

    return jax.jit(jax.grad(loss))


def gradient(rule, batch, targets=None):
    targets = batch.completion_ids if targets is None else targets
    return jax.tree.map(np.asarray, compiled_gradient(rule)(PARAMS, batch, targets))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differ(one, other):
    return any(
        np.abs(a - b).max() > 1e-4 for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


@pytest.mark.parametrize("rule", RULES)
def test_tool_tokens_have_no_weight_under_any_rule(rule):
    """The gradient in every token's log-prob and entropy: exactly 0 on the answers, and not 0 on all others."""
    made, objective = batch(), objective_for(rule)
    weights = weights_of(objective, made)

    def loss(now, entropy):
        return loss_of(objective, made, weights, now, entropy)[0]

    now = made.old_log_probs - 0.05
    for slope in jax.grad(loss, argnums=(0, 1))(now, jnp.ones_like(now)):
        np.testing.assert_array_equal(np.asarray(slope) != 0, ROLLOUT.sampled)


@pytest.mark.parametrize("rule", ["token", "balanced"])
def test_nothing_said_about_tool_tokens_reaches_the_parameters(rule):
    """Their log-probs under other policies, not even if they are infinite, and what they would have had to be."""
    made = batch()
    expected = gradient(rule, made)
    assert differ(expected, jax.tree.map(np.zeros_like, expected))
    wild = [np.where(TOOL, value, made.old_log_probs) for value in (-50.0, -np.inf, np.nan)]
    perturbed = replace(
        made,
        old_log_probs=wild[0],
        ref_log_probs=np.where(TOOL, wild[1], made.ref_log_probs),
        sampler_log_probs=np.where(TOOL, wild[2], made.sampler_log_probs),
    )
    assert_same(gradient(rule, perturbed), expected)
    targets = np.where(TOOL, (made.completion_ids + 7) % 29, made.completion_ids)
    assert_same(gradient(rule, made, targets), expected)


def test_tool_tokens_are_read_and_targets_of_the_policy_s_own_matter():
    """So the test above can fail: other answers to read, or another own token, do change the gradient."""
    made = batch()
    expected = gradient("token", made)
    ours, trainers = (
        f(PARAMS, made)[0] for f in (lambda p, b: with_targets(p, b, b.completion_ids), LOG_PROBS)
    )
    np.testing.assert_array_equal(ours, trainers)
    other = np.where(TOOL, (made.completion_ids + 7) % 29, made.completion_ids)
    assert differ(gradient("token", replace(made, completion_ids=other)), expected)
    own = np.where(ROLLOUT.sampled, (made.completion_ids + 7) % 29, made.completion_ids)
    assert differ(gradient("token", made, own), expected)
    everything = replace(made, loss_mask=made.loss_mask | TOOL)
    assert differ(gradient("token", everything), expected)


def test_fault_10_lengths_count_no_tool_tokens():
    """One response of 10 tokens, 6 of them a tool's, loss 1 on the other 4: 1.0 per token, not 0.4."""
    mask = jnp.array([[1, 1, 0, 0, 0, 0, 0, 0, 1, 1]], bool)
    objective = objectives.Objective(aggregation=RULES["token"])
    one = {"loss_mask": mask, "advantages": jnp.array([-1.0])}
    weights = objectives.weights(objective, group_ids=jnp.zeros(1, int), num_groups=1, **one)
    values = {"log_probs": jnp.zeros((1, 10)), "old_log_probs": jnp.zeros((1, 10))}
    assert float(objectives.loss(objective, weights=weights, **values, **one)[0]) == pytest.approx(1.0)


def test_a_warm_start_learns_no_tool_tokens():
    """Its gradient is the same whatever the answers are as targets: here their log-probs are made constants."""
    ids, learnt = [[5, 6, 7, 8, 9], [4, 3, 2]], [[True, False, False, True, True], [True, True, True]]
    made = batches.supervised_batch([[1], [2]], ids, prompt_size=P, size=T, learnt=learnt)
    np.testing.assert_array_equal(made.loss_mask.sum(1), [3, 3])
    np.testing.assert_array_equal(made.loss_mask[0, :5], learnt[0])
    mesh = sharding.make_mesh(1)

    def step(log_probs):
        update = make_supervised_update(log_probs=log_probs, optimizer=SGD, mesh=mesh, micro_batches=1)
        params = jax.tree.map(jnp.copy, PARAMS)
        state, metrics = update(state_of(params, mesh), sharding.split_rows(made, mesh))
        return jax.tree.map(np.asarray, state.params), float(metrics["warm_start/loss"])

    targets = np.where(made.loss_mask, made.completion_ids, 28)
    one, other = step(LOG_PROBS), step(lambda params, rows: with_targets(params, rows, jnp.asarray(targets)))
    assert_same(one[0], other[0])
    assert one[1] == other[1]


def test_turns_are_counted_from_who_wrote_what():
    metrics = turn_metrics(sampled=ROLLOUT.sampled, lengths=ROLLOUT.completion_lengths)
    assert metrics["turns/mean"] == 2.0
    assert metrics["turns/environment_fraction"] == pytest.approx(16 / 51)
    alone = turn_metrics(sampled=np.ones((3, 4), bool), lengths=np.full(3, 4))
    assert alone == {"turns/mean": 1.0, "turns/environment_fraction": 0.0}
