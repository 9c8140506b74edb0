"""One device = any mesh: gradients, parameters and whole runs are the same however the arrays are split."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from grpo_jax.config import EvaluationConfig, MeshConfig, OptimizerConfig
from grpo_jax.losses import aggregation, dfpo, ratios, surrogates
from grpo_jax.models import axes, head, lora
from grpo_jax.models.config import LoraConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import batches, loop, setup, sharding, sizes
from tests.training import hlo
from tests.training.meshes import MODEL, G, assert_same, make_batch, one_step, prepared
from tests.training.pretrained import LORA, experiment, write_base
from tests.training.test_loop import measured
from tests.training.test_update import objective_for

DRIFT_FIXED = objective_for(
    aggregation.token,
    surrogate=surrogates.reinforce,
    ratio=ratios.sequence,
    transform=dfpo.DriftFix(transform=dfpo.orth_proj),
)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    """The head in several blocks on every device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "NARROWEST_BLOCK", 5)
        patch.setattr(head, "BLOCK_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def policy():
    return nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def batch():
    return make_batch()


@pytest.fixture(scope="module")
def whole(policy, batch):
    """The step on one device, in one micro-batch."""
    return one_step(policy, batch, shape=(1, 1, 1), micro_batches=1)


@pytest.mark.parametrize(
    ("shape", "micro_batches"),
    [
        ((1, 1, 1), 16),
        ((8, 1, 1), 1),
        ((8, 1, 1), 4),
        ((2, 4, 1), 4),
        ((2, 2, 2), 4),
        ((1, 2, 4), 4),
    ],
    ids=str,
)
def test_gradients_do_not_depend_on_the_mesh(policy, batch, whole, shape, micro_batches):
    """Where rows × micro-batches do not come out even there are padding rows, which count nowhere."""
    assert_same(whole, one_step(policy, batch, shape=shape, micro_batches=micro_batches))


@pytest.mark.parametrize("layout", ["plain", "group", "packed"])
def test_every_layout_and_size_is_split_as_well(policy, batch, whole, layout, monkeypatch):
    """Rows sorted by length and cut, a prompt with all its completions in a row, or the rows that a device holds packed."""
    monkeypatch.setattr(sizes, "SHORTEST_CUT", 1)
    monkeypatch.setattr(sizes, "FEWEST_TOKENS", 1)
    ordered, _ = batches.by_group(batch, batch.group_ids, group_size=G)
    # In the group layout a device's share of a micro-batch is whole groups.
    cut = {"shape": (2, 1, 4) if layout == "group" else (2, 2, 2), "micro_batches": 2, "sizes": 2}
    assert_same(whole, one_step(policy, ordered, layout=layout, **cut))


def test_logits_may_be_kept_on_any_mesh(policy, batch, whole):
    assert_same(whole, one_step(policy, batch, shape=(2, 2, 2), micro_batches=2, kept_logits=1000))


def test_drift_fix_sees_groups_whole_on_every_mesh(policy, batch):
    one = one_step(policy, batch, shape=(1, 1, 1), micro_batches=1, objective=DRIFT_FIXED)
    assert_same(one, one_step(policy, batch, shape=(2, 2, 2), micro_batches=2, objective=DRIFT_FIXED))


def test_gradients_are_reduced_once_per_optimizer_step(policy, batch):
    update, state, rows = prepared(policy, batch, shape=(8, 1, 1), micro_batches=2)
    outside, inside = hlo.all_reduces(update.lower(state, rows).compile().as_text())
    parameters = Counter(leaf.shape for leaf in jax.tree.leaves(state.params))
    assert not inside  # no collective of any kind of sum in the loop over micro-batches, or over layers
    assert {shape: Counter(outside)[shape] for shape in parameters} == dict(parameters)
    rest = sum(np.prod(shape) for shape in outside) - sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert rest < 1000  # sums for weights and metrics


def test_moments_and_gradients_lie_where_their_parameters_do(policy, batch):
    update, state, rows = prepared(
        policy, batch, shape=(2, 2, 2), micro_batches=2, optimizer=optax.adamw(1e-3)
    )
    moments = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim]
    assert sharding.specs_of(moments) == sharding.specs_of(state.params) * 2
    held = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state.params))
    assert held < 0.35 * sum(leaf.size for leaf in jax.tree.leaves(state.params))
    after, _ = update(state, rows)
    again, _ = update(after, rows)
    assert sharding.specs_of([leaf for leaf in jax.tree.leaves(again.optimizer) if leaf.ndim]) == (
        sharding.specs_of(again.params) * 2
    )
    assert update.program._cache_size() == 1  # state comes back as it went in, so nothing compiles twice


def test_the_table_names_every_parameter():
    config = replace(
        MODEL, qk_norm=True, out_bias=True, mlp_bias=True, lora=LoraConfig(targets=tuple(axes.PROJECTIONS))
    )
    _, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    for path, leaf in nnx.to_flat_state(state):
        assert len(axes.dimensions_of(".".join(path)) or ()) == len(leaf.shape), path


def test_a_dimension_that_does_not_divide_stays_whole():
    mesh = sharding.make_mesh(1, 2, 4)

    def spec(name, *shape):
        return tuple(axes.parameter_sharding(name, shape, mesh=mesh, config=MODEL).spec)

    assert spec("blocks.query.kernel", 2, 16, 16) == (None, "fsdp", "tensor")
    assert spec("blocks.key.kernel", 2, 16, 8) == (None, "fsdp")  # 8 columns, but two heads on four devices
    assert spec("blocks.query.kernel", 2, 15, 16) == (None, None, "tensor")
    assert spec("optimizer.1.0.mu.blocks.down.kernel", 2, 24, 16) == (None, "tensor", "fsdp")
    assert spec("optimizer.1.0.count") == () and spec("history.window", 16) == ()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base") / "llama", multiple=4)


def test_a_run_on_a_mesh_is_the_run_on_one_device_also_when_resumed(base, tmp_path):
    """Pretrained weights are loaded, sampled from, updated, saved and restored in parts; 6 rows on 4 shards."""

    def config(name, steps, **mesh):
        made = experiment(tmp_path / name, base, steps=steps)
        return replace(
            made,
            rollout=replace(made.rollout, group_size=3),
            update=replace(made.update, micro_batch=4),
            optimizer=OptimizerConfig(learning_rate=1e-2, eps=1e-3),  # Adam divides noise by noise otherwise
            evaluation=EvaluationConfig(every=0, problems=2, samples=1),
            mesh=MeshConfig(**mesh),
        )

    loop.train(setup.prepare(config("one", 2, data=1)))
    loop.train(setup.prepare(config("eight", 1, data=2, fsdp=2, tensor=2)))
    more = config("eight", 2, data=1, fsdp=4, tensor=2)  # a run may go on where it did not begin
    state = loop.train(setup.prepare(replace(more, run=replace(more.run, resume=True))))
    assert state.params.embedding[...].sharding.spec == PartitionSpec("tensor", "fsdp")
    one, eight = (measured(tmp_path / name)[-1] for name in ("one", "eight"))
    assert one.keys() == eight.keys() and one["step"] == 2 and one["grad/norm"] > 0
    for name, value in one.items():
        if not name.startswith(("sampler/", "stage")):
            np.testing.assert_allclose(eight[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_adapters_and_their_base_begin_in_parts(base, tmp_path):
    config = replace(experiment(tmp_path / "run", base, **LORA), mesh=MeshConfig(data=1, fsdp=4, tensor=2))
    run = setup.prepare(config)
    state = setup.initial_state(run)
    run.checkpoints.close()
    one = setup.prepare(replace(config, mesh=MeshConfig(data=1)))
    whole = setup.initial_state(one)
    one.checkpoints.close()
    assert state.frozen.blocks.gate.kernel[...].sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    assert state.params.blocks.query.adapter.a[...].sharding.spec == PartitionSpec(None, "fsdp")
    assert state.params.blocks.query.adapter.b[...].sharding.spec == PartitionSpec(None, None, "tensor")
    for a, b in zip(*(jax.tree.leaves(lora.join(s.params, s.frozen)) for s in (state, whole)), strict=True):
        np.testing.assert_array_equal(a, b)
