"""Every name of the loss section leads to the function it names, with its options bound."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from grpo_jax.config import DriftFixConfig, HistoryConfig, LossConfig, SamplerCorrectionConfig
from grpo_jax.losses import aggregation, dfpo, kl, ratios, sampler, surrogates
from grpo_jax.losses.groups import group_rows
from grpo_jax.training.objective import objective_of

REWARDS = jnp.array([1.0, 0.0, 0.0, 4.0])
GROUPS = {"group_ids": jnp.array([0, 0, 1, 1]), "num_groups": 2, "axis_name": None}


def built(**fields):
    return objective_of(LossConfig(**fields), max_length=7)


def test_aggregations_by_name():
    for name, rule in aggregation.RULES.items():
        if name != "constant":
            assert built(aggregation=name).aggregation is rule
    weights = built(aggregation="constant").aggregation(
        REWARDS, jnp.ones(4), group_rows(**GROUPS).sum, group_rows(**GROUPS).total
    )
    assert jnp.allclose(weights, 1 / (2 * 2 * 7))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"scale": "none"}, [0.5, -0.5, -2.0, 2.0]),
        ({"scale": "none", "baseline": "leave_one_out"}, [1.0, -1.0, -4.0, 4.0]),
        ({"scale": "group_std", "eps": 0.0}, [1.0, -1.0, -1.0, 1.0]),
        ({"scale": "group_std", "eps": 0.0, "ddof": 1}, [0.5**0.5, -(0.5**0.5), -(0.5**0.5), 0.5**0.5]),
    ],
)
def test_advantages_by_hand(fields, expected):
    assert jnp.allclose(
        built(**fields).advantage(REWARDS, group_rows(**GROUPS)), jnp.array(expected), atol=1e-6
    )


def test_surrogates_ratios_and_kl_by_name():
    clip = built(clip_low=0.1, clip_high=0.3, dual_clip=3.0, symmetric=True)
    assert clip.surrogate.func is surrogates.clip
    assert clip.surrogate.keywords == {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3.0, "symmetric": True}
    assert built(surrogate="cispo", ratio_cap=2.0).surrogate.keywords == {"ratio_cap": 2.0}
    assert built(surrogate="sapo", tau_negative=2.0).surrogate.keywords == {
        "tau_positive": 1.0,
        "tau_negative": 2.0,
    }
    assert built(surrogate="reinforce").surrogate is surrogates.reinforce
    for level in ("token", "sequence", "sequence_token", "sequence_product"):
        assert built(ratio=level).ratio is getattr(ratios, level)
    regular = built(kl="k3", kl_coef=0.5, entropy_coef=0.25, mask_truncated=True)
    assert (regular.kl, regular.kl_coef, regular.entropy_coef, regular.mask_truncated) == (
        kl.k3,
        0.5,
        0.25,
        True,
    )


def test_history_by_name():
    for name, memory in {"soft": 4, "window": 4, "ema": 1, "fixed": 1}.items():
        options = HistoryConfig(
            update=name, window=4, initial=0.5, scale=1.5, anchor="posterior", reward_range=(0.0, 2.0)
        )
        history = built(history=options).history
        assert history.update.memory == memory
        assert (history.initial, history.scale, history.anchor, history.reward_range) == (
            0.5,
            1.5,
            "posterior",
            (0.0, 2.0),
        )


def test_drift_fix_takes_the_plain_policy_gradient():
    fix = DriftFixConfig(
        transform="orth_proj", cancel_under_aggregation=True, stop_gradient=False, global_scale=True
    )
    method = built(surrogate="reinforce", ratio="sequence", drift_fix=fix)
    assert method.transform == dfpo.DriftFix(dfpo.orth_proj, True, False, True)
    with pytest.raises(ValueError, match=r"loss.surrogate: got 'clip', expected 'reinforce'"):
        built(ratio="sequence", drift_fix=fix)


def test_sampler_corrections_by_name():
    truncate = SamplerCorrectionConfig(kind="truncate", level="sequence", high=3.0)
    made = built(sampler_correction=truncate).sampler_correction
    assert made.func is sampler.truncate and made.keywords == {"level": ratios.sequence, "cap": 3.0}
    made = built(sampler_correction=replace(truncate, kind="band", low=0.25)).sampler_correction
    assert made.func is sampler.band and made.keywords == {"level": ratios.sequence, "low": 0.25, "high": 3.0}


def test_a_users_own_rule_by_import_path():
    assert (
        built(aggregation="grpo_jax.losses.aggregation:sequence_sum").aggregation is aggregation.sequence_sum
    )
