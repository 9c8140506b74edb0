"""Every layout is the plain one, in less work: gradients and metrics agree whatever is cut and wherever rows stand."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from grpo_jax.losses import aggregation, dfpo, ratios, surrogates
from grpo_jax.losses import objective as objectives
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import batches, layouts, sharding, sizes
from grpo_jax.training.log_probs import make_sized_log_probs
from grpo_jax.training.update import make_log_prob_pass, make_update
from grpo_jax.types import Batch, rows
from tests.training.test_update import state_of

MODEL = ModelConfig(
    vocab_size=29,
    num_layers=2,
    width=16,
    mlp_width=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    layer_windows=(0, 7),
)
B, G, P, T = 16, 4, 5, 8
N = B * G
SGD = optax.sgd(1.0)


@pytest.fixture(scope="module", autouse=True)
def cut_however_small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "SHORTEST_CUT", 1)
        patch.setattr(sizes, "FEWEST_TOKENS", 1)
        yield


@pytest.fixture(scope="module")
def policy():
    return nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def batch(policy) -> Batch:
    """Ragged groups off-policy, with an empty completion and an unscored one, and tokens that matter nowhere."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, T + 1, N).astype(np.int32)
    lengths[3] = 0
    lengths[8:16] = (
        1 + lengths[8:16] // 4
    )  # two short groups, so that sorting and cutting find something to save
    group_ids = np.repeat(np.arange(B), G).astype(np.int32)
    group_ids[6] = -1
    loss_mask = (np.arange(T) < lengths[:, None]) & (group_ids >= 0)[:, None]
    table = np.zeros((N, T), np.float32)
    draft = Batch(
        prompt_ids=np.repeat(rng.integers(0, 29, (B, P)), G, 0).astype(np.int32),
        prompt_lengths=np.repeat(rng.integers(1, P + 1, B), G).astype(np.int32),
        completion_ids=rng.integers(0, 29, (N, T)).astype(np.int32),
        completion_lengths=lengths,
        loss_mask=loss_mask,
        group_ids=group_ids,
        advantages=rng.normal(size=N).astype(np.float32),
        sampler_log_probs=table,
        sampler_full_log_probs=table,
    )
    graphdef, params = policy
    now = np.asarray(jax.jit(log_probs_of(graphdef))(params, draft)[0])
    old = now + rng.normal(0, 0.3, now.shape).astype(np.float32)
    return replace(
        draft, old_log_probs=old, ref_log_probs=old, sampler_log_probs=old, sampler_full_log_probs=old
    )


def log_probs_of(graphdef, layout="plain", number_of_sizes=1, kept_logits=1000):
    return make_sized_log_probs(
        graphdef,
        temperature=0.9,
        kept_logits=kept_logits,
        layout=layout,
        group_size=G,
        number_of_sizes=number_of_sizes,
    )


def one_step(policy, batch, *, objective, layout="plain", mesh=(1, 1, 1), micro_batches=1, number_of_sizes=1):
    """Gradients (by SGD with rate 1) and metrics of one update."""
    graphdef, params = policy
    mesh = sharding.make_mesh(*mesh)
    update = make_update(
        log_probs=log_probs_of(graphdef, layout, number_of_sizes),
        objective=objective,
        optimizer=SGD,
        mesh=mesh,
        num_groups=B,
        micro_batches=micro_batches,
        vocab_size=MODEL.vocab_size,
    )
    state = sharding.place(state_of(params, mesh), sharding.rule_of(mesh, MODEL))
    after, metrics = update(state, sharding.split_rows(batch, mesh))
    gradient = jax.tree.map(lambda old, new: np.asarray(old) - np.asarray(new), params, after.params)
    return gradient, {name: float(value) for name, value in metrics.items()}


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a)
    assert one[1].keys() == other[1].keys()
    for name in one[1]:
        np.testing.assert_allclose(one[1][name], other[1][name], rtol=1e-4, atol=1e-5, err_msg=name)


def clipped(rule):
    return objectives.Objective(
        aggregation=rule, kl_coef=0.1, entropy_coef=0.01, surrogate=partial(surrogates.clip, clip_low=0.1)
    )


OBJECTIVES = {
    "sequence": clipped(aggregation.sequence),
    "sequence_sum": clipped(aggregation.sequence_sum),
    "token": clipped(aggregation.token),
    "batch_token": clipped(aggregation.batch_token),
    "constant": clipped(aggregation.constant(max_length=T)),
    "balanced": clipped(aggregation.balanced),
    "balanced_mass": clipped(aggregation.balanced_mass),
    "balanced_unit": clipped(aggregation.balanced_unit),
    "dfpo": objectives.Objective(
        aggregation=aggregation.token,
        surrogate=surrogates.reinforce,
        ratio=ratios.sequence,
        transform=dfpo.DriftFix(),
    ),
}
ONE, EIGHT, CUBE = (1, 1, 1), (8, 1, 1), (2, 2, 2)
CUTS = [
    ("plain", ONE, 4),
    ("plain", ONE, 16),
    ("plain", EIGHT, 4),  # two rows per device: every group is split
    ("packed", ONE, 1),
    ("packed", ONE, 16),
    ("packed", EIGHT, 4),
    ("packed", (2, 1, 2), 2),
    ("group", ONE, 1),
    ("group", ONE, 16),
    ("group", EIGHT, 2),
    ("group", CUBE, 2),
]
"""Layout, mesh, micro-batches."""


@pytest.fixture(scope="module")
def expected(policy, batch):
    """The plain step in one piece: what all others are held against."""
    steps = {name: one_step(policy, batch, objective=objective) for name, objective in OBJECTIVES.items()}
    assert all(metrics["grad/norm"] > 1e-3 for _, metrics in steps.values())
    return steps


@pytest.mark.parametrize(("layout", "mesh", "micro_batches"), CUTS)
def test_every_cut_of_the_batch_gives_the_same_gradient(policy, batch, expected, layout, mesh, micro_batches):
    cut = one_step(
        policy,
        batch,
        objective=OBJECTIVES["balanced"],
        layout=layout,
        mesh=mesh,
        micro_batches=micro_batches,
        number_of_sizes=3,
    )
    assert_same(expected["balanced"], cut)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "balanced"])
def test_every_objective_in_the_group_layout(policy, batch, expected, name):
    cut = one_step(policy, batch, objective=OBJECTIVES[name], layout="group", micro_batches=4)
    assert_same(expected[name], cut)


def test_drift_fix_with_packed_rows_over_devices(policy, batch, expected):
    cut = one_step(policy, batch, objective=OBJECTIVES["dfpo"], layout="packed", mesh=EIGHT, micro_batches=4)
    assert_same(expected["dfpo"], cut)


@pytest.mark.parametrize("layout", ["group", "packed"])
def test_log_probs_of_the_whole_batch_come_back_in_its_order(policy, batch, layout):
    graphdef, params = policy
    mesh = sharding.make_mesh(1)
    plain = np.asarray(log_probs_of(graphdef)(params, batch)[0])
    log_probs = log_probs_of(graphdef, layout, 3, kept_logits=20)
    cut = np.asarray(make_log_prob_pass(log_probs=log_probs, mesh=mesh, micro_batches=8)(params, batch))
    np.testing.assert_allclose(plain[batch.loss_mask], cut[batch.loss_mask], atol=2e-6)
    one, other = (f(params, batch)[1] for f in (log_probs_of(graphdef), log_probs))
    np.testing.assert_allclose(one[batch.loss_mask], other[batch.loss_mask], atol=2e-6)


def test_rows_of_a_group_are_made_neighbours(batch):
    as_sampled = np.repeat(np.arange(B), G)
    order = np.random.default_rng(1).permutation(N)
    together, ids = batches.by_group(rows(batch, order), as_sampled[order], group_size=G)
    np.testing.assert_array_equal(ids, as_sampled)
    np.testing.assert_array_equal(together.prompt_ids, batch.prompt_ids)


def test_groups_of_another_size_or_of_several_prompts_are_refused(batch):
    ids = np.repeat(np.arange(B), G)
    with pytest.raises(ValueError, match=r"group_ids.*\[4, 8\] rows, expected 4"):
        batches.by_group(batch, np.minimum(ids, B - 2), group_size=G)
    with pytest.raises(ValueError, match=r"prompt_ids.*one prompt per group"):
        batches.by_group(rows(batch, np.roll(np.arange(N), 1)), ids, group_size=G)


def test_auto_takes_groups_where_they_are_whole():
    data, fsdp = sharding.make_mesh(8), sharding.make_mesh(4, 2)
    assert layouts.choose("auto", rows=6, group_size=4, mesh=data) == "packed"
    assert layouts.choose("auto", rows=6, group_size=4, mesh=fsdp) == "plain"
    assert layouts.choose("auto", rows=8, group_size=4, mesh=fsdp) == "group"
    assert layouts.choose("plain", rows=8, group_size=4, mesh=data) == "plain"


def test_a_kernel_is_taken_where_it_can_be_and_refused_elsewhere_by_name():
    def chosen(name, layout, platform, tensor=1, **changes):
        model = replace(MODEL, layer_windows=(), dtype="bfloat16", **changes)
        return layouts.choose_attention(name, layout=layout, platform=platform, model=model, tensor=tensor)

    assert chosen("auto", "group", "tpu") == "splash"
    assert chosen("auto", "packed", "gpu") == "cudnn"
    assert chosen("auto", "group", "gpu") == chosen("auto", "plain", "tpu") == "einsum"
    assert chosen("einsum", "group", "tpu") == "einsum"
    assert chosen("auto", "plain", "gpu", tensor=2, num_heads=4, num_kv_heads=2) == "cudnn"
    assert chosen("auto", "plain", "gpu", tensor=2, num_heads=4, num_kv_heads=1) == "einsum"
    with pytest.raises(
        ValueError, match=r"update.attention: got 'splash', which works on TPU; expected auto"
    ):
        chosen("splash", "group", "cpu")
    with pytest.raises(ValueError, match=r"update.attention: got 'cudnn', .*update.layout plain or packed"):
        chosen("cudnn", "group", "gpu")
