"""One update on a mesh of any shape, and what it takes: for tests that compare meshes."""

import jax
import numpy as np
import optax

from grpo_jax.losses import aggregation
from grpo_jax.models.config import ModelConfig
from grpo_jax.training import sharding
from grpo_jax.training.log_probs import make_sized_log_probs
from grpo_jax.training.update import make_update
from grpo_jax.types import Batch
from tests.training.test_update import objective_for, state_of

MODEL = ModelConfig(
    vocab_size=32,
    num_layers=2,
    width=16,
    mlp_width=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    qkv_bias=True,
    tied_embeddings=False,
)
GROUPS, G, P, T = 4, 4, 5, 6
SGD = optax.sgd(1.0)
BALANCED = objective_for(aggregation.balanced)


def make_batch() -> Batch:
    """Sixteen ragged completions, one of them empty, in an order that splits every group over the devices."""
    rng = np.random.default_rng(0)
    n = GROUPS * G
    lengths = rng.integers(1, T + 1, n).astype(np.int32)
    lengths[3] = 0
    group_ids = rng.permutation(np.repeat(np.arange(GROUPS), G)).astype(np.int32)
    old = rng.normal(-3.5, 0.3, (n, T)).astype(np.float32)
    return Batch(
        prompt_ids=rng.integers(0, 32, (GROUPS, P))[group_ids].astype(np.int32),
        prompt_lengths=rng.integers(1, P + 1, GROUPS)[group_ids].astype(np.int32),
        completion_ids=rng.integers(0, 32, (n, T)).astype(np.int32),
        completion_lengths=lengths,
        loss_mask=np.arange(T) < lengths[:, None],
        group_ids=group_ids,
        advantages=rng.normal(size=n).astype(np.float32),
        sampler_log_probs=old,
        sampler_full_log_probs=old,
        old_log_probs=old,
        ref_log_probs=old,
    )


def prepared(
    policy,
    batch,
    *,
    shape,
    micro_batches,
    objective=BALANCED,
    optimizer=SGD,
    layout="plain",
    sizes=1,
    kept_logits=0,
):
    """An update on a mesh of this shape, and what it takes."""
    graphdef, params = policy
    mesh = sharding.make_mesh(*shape)
    log_probs = make_sized_log_probs(
        graphdef,
        temperature=1.0,
        kept_logits=kept_logits,
        layout=layout,
        group_size=G,
        number_of_sizes=sizes,
    )
    update = make_update(
        log_probs=log_probs,
        objective=objective,
        optimizer=optimizer,
        mesh=mesh,
        num_groups=GROUPS,
        micro_batches=micro_batches,
        vocab_size=MODEL.vocab_size,
    )
    state = sharding.place(state_of(params, mesh, optimizer), sharding.rule_of(mesh, MODEL))
    rows = sharding.pad_rows(batch, micro_batches * sharding.row_shards(mesh))
    return update, state, sharding.split_rows(rows, mesh)


def one_step(policy, batch, **options):
    """Parameters after a step of SGD with rate 1, the gradients that implies, and the metrics."""
    update, state, rows = prepared(policy, batch, **options)
    before = sharding.specs_of(state.params)
    after, metrics = update(state, rows)
    assert sharding.specs_of(after.params) == before
    params = jax.tree.map(sharding.to_host, after.params)
    gradients = jax.tree.map(lambda old, new: np.asarray(old) - new, policy[1], params)
    return gradients, {name: float(value) for name, value in metrics.items()}


def assert_same(one, other):
    assert 1e-3 < one[1]["grad/norm"] < np.inf
    for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-5 * max(np.linalg.norm(a), 1e-2))
    for name in one[1]:
        np.testing.assert_allclose(other[1][name], one[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
