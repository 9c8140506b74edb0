"""One loss, however the batch is cut, padded or masked."""

import re
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P

from grpo_jax.losses import aggregation, dfpo, kl, objective, ratios, recipes, sampler, surrogates
from grpo_jax.losses.arrays import divide
from tests.losses.batches import NUM_GROUPS, batch, compiled, evaluate, loss_and_gradient, loss_part, prepare

RULES = {name: rule(max_length=7) if name == "constant" else rule for name, rule in aggregation.RULES.items()}
DFPO = recipes.dfpo(recipes.balanced(), transform=dfpo.orth_proj, cancel_under_aggregation=True)


def longest_weighs_most(advantages, lengths, group_sum, total):
    """A rule nobody needs: ω_i = T_i / Σ_{j∈g} T_j² / B."""
    groups = aggregation.count_groups(lengths, group_sum, total)
    return divide(lengths, groups * group_sum(lengths**2))


GRPO = recipes.grpo()
CORRECTED = recipes.cispo(sampler_correction=sampler.truncate)
METHODS = {
    **{name: replace(GRPO, aggregation=rule) for name, rule in RULES.items()},
    "new_rule": replace(GRPO, aggregation=longest_weighs_most),
    "regularised": recipes.balanced(kl_coef=0.1, entropy_coef=0.1),
    "dfpo": DFPO,
    "hadw": recipes.ha_dw(recipes.gspo()),
}


def pad_rows(rows: dict, count: int) -> dict:
    """`count` padding rows more, full of values nobody may read."""

    def pad(name, x):
        fill = {"group_ids": -1, "loss_mask": True}.get(name, jnp.nan)
        return jnp.concatenate([x, jnp.full((count, *x.shape[1:]), fill, x.dtype)])

    return {name: pad(name, x) for name, x in rows.items()}


@cache
def accumulation(method: objective.Objective):
    """Four micro-batches under `lax.scan`, each one row of sequences of any group."""

    def accumulate(log_probs, given):
        parts = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), (log_probs, given))

        def step(total, part):
            value, gradient, totals = loss_and_gradient(method, *part)
            return total + value, (gradient, totals)

        value, (gradient, totals) = jax.lax.scan(step, 0.0, parts)
        return value, gradient.reshape(log_probs.shape), totals.collapse()

    return compiled(accumulate)


def test_faults_4_6_and_11_four_micro_batches_that_split_groups_equal_one():
    rows = batch()
    for name, method in METHODS.items():
        whole = evaluate(method, rows)
        cut = accumulation(loss_part(method))(rows["log_probs"], prepare(method, rows))
        np.testing.assert_allclose(cut[0], whole[0], rtol=1e-5, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(cut[1], whole[1], rtol=1e-5, atol=1e-8, err_msg=name)
        metrics = cut[2].finalize()
        for metric, value in whole[2].finalize().items():
            np.testing.assert_allclose(metrics[metric], value, rtol=1e-5, atol=1e-7, err_msg=metric)


def test_fault_5_eight_devices_that_split_groups_equal_one():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = batch()

    def all_methods(rows, axis_name=None):
        results = {}
        for name, method in METHODS.items():
            given = prepare(method, rows, axis_name=axis_name)
            value, gradient, totals = loss_and_gradient(method, rows["log_probs"], given)
            if axis_name is not None:
                value = jax.lax.psum(value, axis_name)
            results[name] = value, gradient, totals.psum(axis_name)
        return results

    one = compiled(all_methods)(rows)
    out = {name: (P(), P("data"), P()) for name in METHODS}
    sharded = jax.shard_map(
        partial(all_methods, axis_name="data"), mesh=mesh, in_specs=P("data"), out_specs=out
    )
    eight = compiled(sharded)(pad_rows(rows, 4))
    for name in METHODS:
        np.testing.assert_allclose(eight[name][0], one[name][0], rtol=1e-5, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(eight[name][1][:12], one[name][1], rtol=1e-5, atol=1e-8, err_msg=name)
        assert np.all(np.asarray(eight[name][1][12:]) == 0)
        assert eight[name][2].finalize().keys() == one[name][2].finalize().keys()
        for metric, value in one[name][2].finalize().items():
            np.testing.assert_allclose(eight[name][2].finalize()[metric], value, rtol=1e-5, atol=1e-7)


def test_anchor_and_advantages_of_sharded_rewards_equal_those_of_all():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    method = recipes.ha_dw(recipes.grpo())
    rows = pad_rows(batch(rewards="graded"), 4)

    def advantages(rewards, group_ids, history, axis_name=None):
        return objective.advantages(
            method,
            rewards=rewards,
            group_ids=group_ids,
            num_groups=NUM_GROUPS,
            history=history,
            axis_name=axis_name,
        )

    arguments = rows["rewards"], rows["group_ids"], objective.init_history(method)
    sharded = jax.shard_map(
        partial(advantages, axis_name="data"),
        mesh=mesh,
        in_specs=(P("data"), P("data"), P()),
        out_specs=(P("data"), P(), P()),
    )
    for split, whole in zip(
        jax.tree.leaves(compiled(sharded)(*arguments)),
        jax.tree.leaves(compiled(advantages)(*arguments)),
        strict=True,
    ):
        np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("under_mask", [-jnp.inf, jnp.nan, 200.0])
def test_fault_13_what_lies_under_the_mask_reaches_neither_value_nor_gradient(under_mask):
    rows = batch()
    for method in (METHODS["regularised"], DFPO, METHODS["hadw"], CORRECTED):
        clean = evaluate(method, rows)
        spoiled = rows | {
            name: jnp.where(rows["loss_mask"], rows[name], under_mask)
            for name in ("log_probs", "ref_log_probs", "entropy")
        }
        value, gradient, totals = evaluate(method, spoiled)
        np.testing.assert_allclose(value, clean[0], rtol=1e-6)
        np.testing.assert_allclose(gradient, clean[1], rtol=1e-6)
        assert all(np.isfinite(x) for x in totals.finalize().values())


def test_fault_13_a_log_ratio_of_200_under_the_mask_by_hand():
    """Two tokens, log-ratios 0.1 and 200, the second masked: the second's gradient is 0, not NaN."""
    rows = batch(rows=6, tokens=2) | {
        "log_probs": jnp.asarray([[0.1, 200.0]] * 6),
        "old_log_probs": jnp.zeros((6, 2)),
        "loss_mask": jnp.asarray([[True, False]] * 6),
    }
    value, gradient, _ = evaluate(recipes.grpo(), rows)
    assert np.isfinite(value) and np.all(gradient[:, 1] == 0) and np.any(gradient[:, 0] != 0)


def test_fault_12_an_empty_mask_and_an_empty_side_give_zero_not_nan():
    rows = batch()
    for method in METHODS.values():
        nothing = rows | {"loss_mask": jnp.zeros_like(rows["loss_mask"])}
        value, gradient, totals = evaluate(method, nothing)
        assert value == 0 and np.all(gradient == 0)
        assert all(np.isfinite(x) for x in totals.finalize().values())
        right_only = rows | {"loss_mask": rows["loss_mask"] & (rows["rewards"] > 0)[:, None]}
        value, gradient, _ = evaluate(method, right_only)
        assert np.isfinite(value) and np.all(np.isfinite(gradient))


def test_a_group_judged_alike_has_gradient_exactly_zero_under_every_rule_and_surrogate():
    rows = batch()
    first = rows["group_ids"] == 0
    rows["rewards"] = jnp.where(first, 0.7, rows["rewards"])
    surrogate_methods = {
        surrogate.__name__: recipes.grpo(surrogate=surrogate)
        for surrogate in (surrogates.clip, surrogates.reinforce, surrogates.cispo, surrogates.sapo)
    }
    for name, method in (METHODS | surrogate_methods).items():
        if name == "regularised":
            continue
        _, gradient, _ = evaluate(method, rows)
        assert np.all(gradient[np.asarray(first)] == 0), name
        assert np.any(gradient != 0), name


def test_bfloat16_inputs_lose_less_than_1e_4():
    rows = batch()
    coarse = {name: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x for name, x in rows.items()}
    same = {name: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for name, x in coarse.items()}
    for method in METHODS.values():
        value, gradient, totals = evaluate(method, coarse)
        wanted = evaluate(method, same)
        np.testing.assert_allclose(value, wanted[0], rtol=1e-4)
        assert gradient.dtype == jnp.bfloat16  # of bfloat16 log-probs; it is right to its last bit
        np.testing.assert_allclose(gradient.astype(float), wanted[1], rtol=2**-8, atol=1e-9)
        for name, metric in totals.finalize().items():
            np.testing.assert_allclose(metric, wanted[2].finalize()[name], rtol=1e-4, atol=1e-7)


def test_faults_30_and_41_the_first_update_has_ratio_1_and_the_plain_policy_gradient():
    rows = batch()
    on_policy = rows | {"old_log_probs": rows["log_probs"]}
    _, gradient, totals = evaluate(recipes.grpo(), on_policy)
    _, plain, _ = evaluate(recipes.grpo(surrogate=surrogates.reinforce), on_policy)
    np.testing.assert_allclose(gradient, plain, rtol=1e-6)
    metrics = totals.finalize()
    assert metrics["ratio/max"] == 1 and metrics["kl/old"] == 0
    np.testing.assert_allclose(metrics["ratio/ess"], 1.0, rtol=1e-6)
    _, _, later = evaluate(recipes.grpo(), rows)
    assert later.finalize()["ratio/max"] != 1 and later.finalize()["ratio/ess"] < 1


def test_fault_43_loss_is_0_on_policy_at_equal_lengths_and_its_gradient_is_not():
    rows = batch() | {"loss_mask": jnp.ones((12, 5), bool)}
    value, gradient, _ = evaluate(recipes.grpo(), rows | {"old_log_probs": rows["log_probs"]})
    assert abs(value) < 1e-6 and np.linalg.norm(gradient) > 0.1


def test_faults_0_and_43_without_a_kl_coefficient_no_reference_is_needed_and_no_kl_is_reported():
    rows = batch()
    given = prepare(recipes.grpo(), rows) | {"ref_log_probs": None, "entropy": None}
    _, _, totals = loss_and_gradient(recipes.grpo(), rows["log_probs"], given)
    assert "kl/ref" not in totals.finalize() and "entropy/mean" not in totals.finalize()


def weights_of(rule, rows):
    advantages = rows["rewards"] - 0.4
    return objective.weights(
        replace(GRPO, aggregation=rule),
        advantages=advantages,
        loss_mask=rows["loss_mask"],
        group_ids=rows["group_ids"],
        num_groups=NUM_GROUPS,
    )


def test_regularisers_are_averaged_without_signs():
    """KL and entropy have no sign: under the balanced rules they are means over each group's tokens."""
    rows = batch()
    for name, rule in RULES.items():
        blind = RULES["token"] if name.startswith("balanced") else rule
        regulariser = weights_of(rule, rows).regulariser
        np.testing.assert_array_equal(regulariser, weights_of(blind, rows).policy, err_msg=name)
    base, _, _ = evaluate(recipes.balanced(), rows)
    value, _, _ = evaluate(recipes.balanced(entropy_coef=0.5, kl=kl.k1, kl_coef=0.25), rows)
    token_means = np.sum(
        np.where(rows["loss_mask"], weights_of(RULES["token"], rows).policy[:, None], 0)
        * (0.25 * np.asarray(rows["log_probs"] - rows["ref_log_probs"]) - 0.5 * np.asarray(rows["entropy"]))
    )
    np.testing.assert_allclose(value - base, token_means, rtol=1e-5)


def test_lengths_are_counted_exactly_however_coarse_the_inputs():
    """bfloat16 cannot count beyond 256."""
    made = objective.weights(
        GRPO,
        advantages=jnp.ones(1, jnp.bfloat16),
        loss_mask=jnp.ones((1, 1001), bool),
        group_ids=jnp.zeros(1, jnp.int32),
    )
    np.testing.assert_allclose(made.policy, 1 / 1001, rtol=1e-6)


def test_padding_rows_and_empty_sequences_weigh_nothing_under_any_rule():
    rows = pad_rows(batch(), 2)
    rows["rewards"] = jnp.where(rows["group_ids"] < 0, 1.0, rows["rewards"])
    rows["loss_mask"] = rows["loss_mask"].at[4].set(False)
    for name, rule in RULES.items():
        made = weights_of(rule, rows)
        np.testing.assert_array_equal(np.flatnonzero(made.policy == 0), [4, 12, 13], err_msg=name)
        np.testing.assert_array_equal(np.flatnonzero(made.regulariser == 0), [4, 12, 13], err_msg=name)
        np.testing.assert_array_equal(np.flatnonzero(~made.counted), [12, 13])


def test_fault_15_an_unscored_reward_is_not_in_any_mean():
    """Rewards 1, NaN, 0: the mean is .5 over the two that were scored."""
    _, _, metrics = objective.advantages(
        GRPO,
        rewards=jnp.asarray([1.0, jnp.nan, 0.0]),
        scored=jnp.asarray([True, False, True]),
        group_ids=jnp.zeros(3, jnp.int32),
    )
    assert metrics["reward/mean"] == 0.5
    assert all(np.isfinite(x) for x in metrics.values())


def test_an_unscored_row_is_as_if_never_sampled():
    rows = batch()
    scored = jnp.arange(12) != 3
    ids = jnp.where(scored, rows["group_ids"], -1)
    advantages, _, metrics = objective.advantages(
        recipes.grpo(),
        rewards=jnp.where(scored, rows["rewards"], jnp.nan),
        scored=scored,
        group_ids=rows["group_ids"],
        num_groups=NUM_GROUPS,
    )
    kept = {name: x[np.asarray(scored)] for name, x in rows.items()}
    alone, _, alone_metrics = objective.advantages(
        recipes.grpo(), rewards=kept["rewards"], group_ids=kept["group_ids"], num_groups=NUM_GROUPS
    )
    np.testing.assert_allclose(advantages[np.asarray(scored)], alone, rtol=1e-6)
    assert advantages[3] == 0
    assert {k: float(v) for k, v in metrics.items()} == pytest.approx(
        {k: float(v) for k, v in alone_metrics.items()}
    )
    weights = objective.weights(
        recipes.grpo(),
        advantages=advantages,
        loss_mask=rows["loss_mask"],
        group_ids=ids,
        num_groups=NUM_GROUPS,
    )
    lengths = kept["loss_mask"].sum(1)
    size = jnp.asarray([jnp.sum(kept["group_ids"] == g) for g in kept["group_ids"]])
    np.testing.assert_allclose(weights.policy[np.asarray(scored)], 1 / (3 * size * lengths), rtol=1e-6)
    assert weights.policy[3] == 0


def raises(message: str):
    return pytest.raises(ValueError, match=re.escape(message))


def test_errors_name_the_argument(no_shape_checker):
    rows, method = batch(), recipes.grpo()
    given = prepare(method, rows)

    def loss(**changes):
        return objective.loss(method, log_probs=rows["log_probs"], **(given | changes))

    with raises("old_log_probs: expected shape [12, 5], got [12, 4]"):
        loss(old_log_probs=rows["old_log_probs"][:, :4])
    with raises("advantages: expected shape [12], got [12, 1]"):
        loss(advantages=given["advantages"][:, None])
    with raises("weights: expected shape [12], got [3]"):
        loss(weights=jax.tree.map(lambda x: x[:3], given["weights"]))
    with raises("loss_mask: expected shape [N, T], got [12]"):
        objective.weights(
            method, advantages=given["advantages"], loss_mask=rows["rewards"], group_ids=rows["group_ids"]
        )
    with raises("group_ids: expected shape [11], got [12]"):
        objective.advantages(method, rewards=rows["rewards"][:11], group_ids=rows["group_ids"])
    with raises("rewards: expected finite values where scored; got nan"):
        objective.advantages(method, rewards=rows["rewards"].at[2].set(jnp.nan), group_ids=rows["group_ids"])


def test_errors_say_what_the_objective_still_needs():
    rows, method = batch(), recipes.grpo()
    given = prepare(method, rows)

    def loss(method, **changes):
        return objective.loss(method, log_probs=rows["log_probs"], **(given | changes))

    with raises("ref_log_probs: needed by the objective's kl_coef"):
        loss(recipes.grpo(kl_coef=0.1), ref_log_probs=None)
    with raises("entropy: needed by the objective's entropy_coef"):
        loss(recipes.grpo(entropy_coef=0.1), entropy=None)
    with raises("sampler_log_probs: needed by the objective's sampler_correction"):
        loss(recipes.grpo(sampler_correction=sampler.truncate), sampler_log_probs=None)
    with raises("group_constants: needed by the objective's transform"):
        loss(DFPO, group_constants=None)
    with raises("history: the objective uses HA-DW"):
        objective.advantages(
            recipes.ha_dw(method), rewards=rows["rewards"], group_ids=rows["group_ids"], num_groups=3
        )
    with raises("max_length: the constant rule divides by it"):
        aggregation.constant()
    with raises("aggregation: constant needs its max_length"):
        objective.Objective(aggregation=aggregation.constant)
    with raises("ratio: DFPO transforms one ratio per sequence"):
        recipes.dfpo(method, ratio=ratios.token)


def test_group_ids_out_of_range_are_an_error_at_once_or_under_checkify():
    rows = batch()
    with raises("group_ids: expected ids in [0, 2), or -1 on padding rows; got 2"):
        prepare(recipes.grpo(), rows, num_groups=2)
    with raises("num_groups: needed under jit"):
        jax.jit(lambda rows: prepare(recipes.grpo(), rows, num_groups=None))(rows)
    with raises("num_groups: expected a static number of at least 1, got 0"):
        prepare(recipes.grpo(), rows, num_groups=0)

    checked = checkify.checkify(jax.jit(lambda rows: prepare(recipes.grpo(), rows, num_groups=2)["weights"]))
    error, _ = checked(rows)
    assert "group_ids: expected ids in [0, 2)" in error.get()
    fine = rows | {"group_ids": jnp.minimum(rows["group_ids"], 1)}
    assert checked(fine)[0].get() is None
    assert prepare(recipes.grpo(), rows, num_groups=None)["weights"].policy.shape == (12,)
