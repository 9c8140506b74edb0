"""The order of training problems: shuffled anew each epoch, and read at any position without replaying.

The whole state is one integer, the `cursor`: how many problems have been taken since the run began. The
problem at a cursor depends on nothing but (seed, cursor, number of problems), so a resumed run takes the same
problems at an epoch boundary as anywhere else, and hosts agree without talking.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import grain

from grpo_jax.tasks.splitting import Mixture

T = TypeVar("T")


def batch(
    problems: Sequence[T],
    *,
    cursor: int,
    batch_size: int,
    seed: int,
    mixture: Mixture | None = None,
    host_index: int = 0,
    host_count: int = 1,
) -> list[T]:
    """The problems at cursor … cursor + batch_size − 1, or this host's share of them.

    Every problem is taken once an epoch; a batch may run from one epoch into the next, so none is dropped.
    With a mixture, each pool has epochs of its own, and is drawn from by its weight. The next batch starts
    at cursor + batch_size, whatever the number of hosts.
    """
    order = _order(len(problems), seed) if mixture is None else _mixed_order(mixture, seed)
    positions = host_slice(batch_size, host_index=host_index, host_count=host_count)
    return [problems[order[cursor + i]] for i in range(batch_size)[positions]]


def host_slice(batch_size: int, *, host_index: int, host_count: int) -> slice:
    """The rows of a global batch that a host works on: neighbours, in host order."""
    if batch_size % host_count:
        raise ValueError(
            f"rollout.batch_size {batch_size} cannot be divided among {host_count} hosts; make it a multiple."
        )
    share = batch_size // host_count
    return slice(host_index * share, (host_index + 1) * share)


@lru_cache(maxsize=8)
def _order(count: int, seed: int) -> grain.MapDataset:
    if count < 1:
        raise ValueError("data: there are no problems to train on.")
    # Shuffle before repeat: each epoch then holds every problem once, in its own order.
    return grain.MapDataset.source(range(count)).seed(seed).shuffle().repeat()


@lru_cache(maxsize=8)
def _mixed_order(mixture: Mixture, seed: int) -> grain.MapDataset:
    drawn = [(pool, weight) for pool, weight in zip(mixture.pools, mixture.weights, strict=True) if weight]
    orders = [
        grain.MapDataset.source(pool).seed(seed + number).shuffle().repeat()
        for number, (pool, _) in enumerate(drawn)
    ]
    return grain.MapDataset.mix(orders, weights=[weight for _, weight in drawn])
