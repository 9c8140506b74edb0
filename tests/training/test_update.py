"""Two routes, one answer: micro-batches, devices, row order and padding rows change no gradient."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from grpo_jax.config import OptimizerConfig
from grpo_jax.losses import aggregation, dfpo, ratios, surrogates
from grpo_jax.losses import objective as objectives
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import sharding
from grpo_jax.training.log_probs import make_log_probs
from grpo_jax.training.programs import build_optimizer
from grpo_jax.training.update import make_log_prob_pass, make_supervised_update, make_update
from grpo_jax.types import Batch, TrainState, rows

MODEL = ModelConfig(
    vocab_size=29, num_layers=2, width=16, mlp_width=32, num_heads=2, num_kv_heads=1, head_dim=8
)
GROUPS, G, P, T = 4, 4, 5, 6
SGD = optax.sgd(1.0)
RULES = {
    "sequence": aggregation.sequence,
    "sequence_sum": aggregation.sequence_sum,
    "token": aggregation.token,
    "batch_token": aggregation.batch_token,
    "constant": aggregation.constant(max_length=T),
    "balanced": aggregation.balanced,
    "balanced_mass": aggregation.balanced_mass,
    "balanced_unit": aggregation.balanced_unit,
}


@pytest.fixture(scope="module")
def policy():
    graphdef, params = nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))
    return make_log_probs(graphdef, temperature=1.0, kept_logits=16), params


@pytest.fixture(scope="module")
def batch(policy) -> Batch:
    """Ragged completions, one of them empty, off-policy, groups of mixed rewards."""
    rng = np.random.default_rng(0)
    n = GROUPS * G
    lengths = rng.integers(1, T + 1, n).astype(np.int32)
    lengths[3] = 0
    draft = Batch(
        prompt_ids=np.repeat(rng.integers(0, 29, (GROUPS, P)), G, 0).astype(np.int32),
        prompt_lengths=np.repeat(rng.integers(1, P + 1, GROUPS), G).astype(np.int32),
        completion_ids=rng.integers(0, 29, (n, T)).astype(np.int32),
        completion_lengths=lengths,
        loss_mask=np.arange(T) < lengths[:, None],
        group_ids=np.repeat(np.arange(GROUPS), G).astype(np.int32),
        advantages=rng.normal(size=n).astype(np.float32),
        sampler_log_probs=np.zeros((n, T), np.float32),
        sampler_full_log_probs=np.zeros((n, T), np.float32),
    )
    log_probs, params = policy
    now = np.asarray(jax.jit(log_probs)(params, draft)[0])
    old = now + rng.normal(0, 0.3, now.shape).astype(np.float32)
    return replace(
        draft, old_log_probs=old, ref_log_probs=old, sampler_log_probs=old, sampler_full_log_probs=old
    )


def update_of(log_probs, *, objective, mesh, micro_batches=1, num_groups=GROUPS, optimizer=SGD, **options):
    return make_update(
        log_probs=log_probs,
        objective=objective,
        optimizer=optimizer,
        mesh=mesh,
        num_groups=num_groups,
        micro_batches=micro_batches,
        vocab_size=MODEL.vocab_size,
        **options,
    )


def state_of(params, mesh, optimizer=SGD) -> TrainState:
    state = TrainState.first(params=params, optimizer=optimizer.init(params), key=jnp.int32(0))
    return sharding.replicate(state, mesh)


def one_step(policy, batch, *, objective, devices=1, micro_batches=1, num_groups=GROUPS):
    """Gradients (by SGD with rate 1) and metrics of one update."""
    log_probs, params = policy
    mesh = sharding.make_mesh(devices)
    update = update_of(
        log_probs, objective=objective, mesh=mesh, micro_batches=micro_batches, num_groups=num_groups
    )
    after, metrics = update(state_of(params, mesh), sharding.split_rows(batch, mesh))
    gradient = jax.tree.map(lambda old, new: np.asarray(old) - np.asarray(new), params, after.params)
    return gradient, {name: float(value) for name, value in metrics.items()}


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(np.linalg.norm(a), 1e-3))
    assert one[1].keys() == other[1].keys()
    for name in one[1]:
        np.testing.assert_allclose(one[1][name], other[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def objective_for(rule, **changes):
    return replace(
        objectives.Objective(
            aggregation=rule, kl_coef=0.1, entropy_coef=0.01, surrogate=partial(surrogates.clip, clip_low=0.1)
        ),
        **changes,
    )


@pytest.mark.parametrize("rule", RULES)
def test_micro_batches_and_devices_change_nothing(policy, batch, rule):
    objective = objective_for(RULES[rule])
    whole = one_step(policy, batch, objective=objective)
    assert np.isfinite(whole[1]["grad/norm"]) and whole[1]["grad/norm"] > 1e-3
    assert_same(whole, one_step(policy, batch, objective=objective, devices=8, micro_batches=2))
    if rule in ("sequence", "token", "batch_token", "constant", "balanced"):
        assert_same(whole, one_step(policy, batch, objective=objective, micro_batches=4))


@pytest.mark.parametrize("transform", [dfpo.min_replace, dfpo.orth_proj])
def test_drift_fix_sees_groups_whole(policy, batch, transform):
    objective = objective_for(
        aggregation.token,
        surrogate=surrogates.reinforce,
        ratio=ratios.sequence,
        transform=dfpo.DriftFix(transform=transform),
    )
    whole = one_step(policy, batch, objective=objective)
    assert_same(whole, one_step(policy, batch, objective=objective, micro_batches=8))
    assert_same(whole, one_step(policy, batch, objective=objective, devices=8))


def test_row_order_and_padding_rows_change_nothing(policy, batch):
    objective = objective_for(aggregation.balanced)
    whole = one_step(policy, batch, objective=objective)
    order = np.random.default_rng(1).permutation(GROUPS * G)
    assert_same(whole, one_step(policy, rows(batch, order), objective=objective, micro_batches=4))
    padded = sharding.pad_rows(batch, 24)
    assert padded.group_ids.shape == (24,)
    assert_same(whole, one_step(policy, padded, objective=objective, devices=8))


def test_unscored_rows_are_as_if_never_sampled(policy, batch):
    dropped = np.arange(GROUPS * G) % G == 1
    without = replace(
        batch, group_ids=np.where(dropped, -1, batch.group_ids), loss_mask=batch.loss_mask & ~dropped[:, None]
    )
    objective = objective_for(aggregation.balanced)
    kept = rows(batch, np.flatnonzero(~dropped))
    assert_same(one_step(policy, kept, objective=objective), one_step(policy, without, objective=objective))


def test_a_mini_batch_of_padding_rows_alone_moves_nothing(policy, batch):
    nothing = replace(
        batch, group_ids=np.full_like(batch.group_ids, -1), loss_mask=np.zeros_like(batch.loss_mask)
    )
    gradient, metrics = one_step(
        policy, nothing, objective=objective_for(aggregation.balanced), micro_batches=2
    )
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient))
    assert metrics["update/skipped"] == 0 and metrics["grad/norm"] == 0


def test_without_old_log_probs_the_policy_is_its_own_old_policy(policy, batch):
    log_probs, params = policy
    objective = objective_for(aggregation.token)
    now = np.asarray(
        make_log_prob_pass(log_probs=log_probs, mesh=sharding.make_mesh(1), micro_batches=2)(params, batch)
    )
    stored = one_step(policy, replace(batch, old_log_probs=now), objective=objective, micro_batches=2)
    implied = one_step(policy, replace(batch, old_log_probs=None), objective=objective, micro_batches=2)
    assert_same(stored, implied)
    assert implied[1]["ratio/max"] == 1.0


def test_the_gap_to_a_sampler_whose_log_probs_are_taken_is_the_steps_own(policy, batch):
    """Between old log-probs and the sampler's there is none then, however far the trainer is from it."""
    log_probs, params = policy
    mesh, gaps = sharding.make_mesh(1), []
    for taken in (False, True):
        update = update_of(
            log_probs, objective=objective_for(aggregation.token), mesh=mesh, old_is_sampler=taken
        )
        _, metrics = update(state_of(params, mesh), sharding.split_rows(batch, mesh))
        gaps.append(float(metrics["sampler/log_prob_gap"]))
    distance = np.abs(np.asarray(log_probs(params, batch)[0]) - batch.sampler_full_log_probs)
    np.testing.assert_allclose(gaps, [0.0, distance[batch.loss_mask].mean()], rtol=1e-4)


def test_the_second_update_on_a_rollout_is_off_policy_against_the_stored_old_log_probs(policy, batch):
    """Fault 41: ratio 1 in the first iteration and not in the second, whose old log-probs are still the rollout's."""
    log_probs, params = policy
    mesh = sharding.make_mesh(1)
    old = np.asarray(make_log_prob_pass(log_probs=log_probs, mesh=mesh, micro_batches=1)(params, batch))
    optimizer = optax.sgd(0.3)
    update = update_of(log_probs, objective=objective_for(aggregation.token), mesh=mesh, optimizer=optimizer)
    state = state_of(params, mesh, optimizer)
    state, first = update(state, replace(batch, old_log_probs=old))
    moved = np.asarray(log_probs(state.params, batch)[0])
    _, second = update(state, replace(batch, old_log_probs=old))
    assert first["ratio/max"] == 1.0 and first["kl/old"] == 0
    expected = np.exp(moved - old)[batch.loss_mask].mean()
    assert second["ratio/max"] != 1.0
    np.testing.assert_allclose(second["ratio/mean"], expected, rtol=1e-5)


def test_a_non_finite_gradient_is_skipped_and_counted(policy, batch):
    log_probs, params = policy

    def broken(params, rows):
        now, entropy = log_probs(params, rows)
        return now * jnp.where(rows.advantages[:, None] > 1, jnp.inf, 1.0), entropy

    gradient, metrics = one_step((broken, params), batch, objective=objective_for(aggregation.token))
    assert metrics["update/skipped"] == 1
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient))

    mesh, adam = sharding.make_mesh(1), optax.adam(0.1)
    update = update_of(broken, objective=objective_for(aggregation.token), mesh=mesh, optimizer=adam)
    before = state_of(params, mesh, adam)
    unmoved = jax.tree.map(np.array, before.optimizer)
    jax.tree.map(np.testing.assert_array_equal, update(before, batch)[0].optimizer, unmoved)


def test_a_step_holds_one_gradient_besides_parameters_and_moments(batch):
    """Neither parameters nor moments are there twice, before and after the step."""
    params = {"w": jnp.ones((512, 4096))}

    def log_probs(params, rows):
        now = jnp.zeros(rows.completion_ids.shape) - jnp.square(params["w"]).mean()
        return now, jnp.zeros_like(now)

    mesh, adam = sharding.make_mesh(1), build_optimizer(OptimizerConfig(warmup_steps=2, weight_decay=0.1), 10)
    update = update_of(log_probs, objective=objective_for(aggregation.token), mesh=mesh, optimizer=adam)
    memory = update.lower(state_of(params, mesh, adam), batch).compile().memory_analysis()
    assert params["w"].nbytes <= memory.temp_size_in_bytes < 1.2 * params["w"].nbytes


def test_supervised_loss_is_the_mean_over_tokens_however_cut(policy, batch):
    log_probs, params = policy
    expected = -np.asarray(log_probs(params, batch)[0])[batch.loss_mask].mean()
    results = []
    for devices, micro_batches in ((1, 1), (1, 4), (8, 2)):
        mesh = sharding.make_mesh(devices)
        update = make_supervised_update(
            log_probs=log_probs, optimizer=SGD, mesh=mesh, micro_batches=micro_batches
        )
        after, metrics = update(state_of(params, mesh), sharding.split_rows(batch, mesh))
        np.testing.assert_allclose(float(metrics["warm_start/loss"]), expected, rtol=1e-5)
        results.append((jax.device_get(after.params), {"loss": float(metrics["warm_start/loss"])}))
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])
