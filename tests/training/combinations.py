"""Every mesh × micro-batches × layout × objective that an update may be cut into and computed by, and a step of each."""

from itertools import product
from typing import NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from grpo_jax.losses import aggregation, dfpo, ratios, surrogates
from grpo_jax.models.decoder import Decoder
from grpo_jax.training import batches, sharding
from grpo_jax.types import Batch, rows
from tests.training.meshes import MODEL, G, make_batch, prepared
from tests.training.test_update import RULES, objective_for

KEEPS_GRADIENTS = optax.sgd(1.0, momentum=0.0)
"""SGD whose state is the gradients: as differences of parameters they would be rounded to those."""
OBJECTIVES = {name: objective_for(rule) for name, rule in RULES.items()} | {
    "dfpo": objective_for(
        aggregation.token,
        surrogate=surrogates.reinforce,
        ratio=ratios.sequence,
        transform=dfpo.DriftFix(transform=dfpo.orth_proj),
    )
}
"""All eight rules for the weights of tokens, with KL and entropy terms, and DFPO."""


class Cut(NamedTuple):
    """A way to cut a mini-batch, and what is computed of it."""

    mesh: tuple[int, int, int]
    micro_batches: int
    layout: str
    objective: str

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.mesh))}-{self.micro_batches}-{self.layout}-{self.objective}"


MESHES = ((1, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 4))
ALL = [Cut(*values) for values in product(MESHES, (1, 4, 16), ("plain", "packed", "group"), OBJECTIVES)]


def make_policy():
    """Weights and graph of a small decoder; every test takes the same."""
    return nnx.split(Decoder(MODEL, rngs=nnx.Rngs(0)))


def dealt(batch: Batch, cut: Cut) -> Batch:
    """`batch` with the padding rows that `cut` needs, in an order that deals the others to all devices and micro-batches.

    That splits every group between devices, but in the group layout, where groups are whole and dealt as such.
    """
    unit = G if cut.layout == "group" else 1
    if cut.layout == "group":
        batch, _ = batches.by_group(batch, batch.group_ids, group_size=G)
    data, fsdp, _ = cut.mesh
    padded = sharding.pad_rows(batch, unit * data * fsdp * cut.micro_batches)
    order = np.random.default_rng(1).permutation(padded.group_ids.shape[0] // unit)
    return rows(padded, (order[:, None] * unit + np.arange(unit)).reshape(-1))


def step(policy, cut: Cut):
    """Gradients and parameters after a step of SGD, leaf by leaf, and the metrics."""
    update, state, batch = prepared(
        policy,
        dealt(make_batch(), cut),
        shape=cut.mesh,
        micro_batches=cut.micro_batches,
        objective=OBJECTIVES[cut.objective],
        optimizer=KEEPS_GRADIENTS,
        layout=cut.layout,
    )
    after, metrics = update(state, batch)
    leaves = [sharding.to_host(leaf) for leaf in jax.tree.leaves((after.optimizer, after.params))]
    return leaves, {name: float(value) for name, value in metrics.items()}
