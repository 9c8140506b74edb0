"""Checkpoints of the train state, by Orbax: the newest few and the best by held-out accuracy.

All of the state but its frozen part, which the run's config says how to make again.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from grpo_jax.types import InputError, TrainState


class Checkpoints:
    """Saves and restores `TrainState`s in one folder, numbered by global step (warm start included)."""

    def __init__(self, folder: Path, *, keep: int):
        policies = [
            preservation_policy.LatestN(keep),
            preservation_policy.BestN(
                get_metric_fn=lambda metrics: metrics["accuracy"], n=1, keep_checkpoints_without_metrics=False
            ),
        ]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(policies), create=True
        )
        self.folder = folder
        # With its handler named, the manager can describe a checkpoint it has not itself written.
        self._manager = ocp.CheckpointManager(
            folder.absolute(), options=options, item_handlers=ocp.StandardCheckpointHandler()
        )

    @property
    def latest(self) -> int | None:
        """Global step of the newest checkpoint, None if there is none."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, *, accuracy: float | None = None) -> None:
        """Starts writing `state`; returns once the arrays are copied, so that training may donate them.

        The newest step is not written twice: a stop may be asked for just after a step was saved.
        """
        if step == self.latest:
            return
        metrics = None if accuracy is None else {"accuracy": accuracy}
        self._manager.save(step, args=ocp.args.StandardSave(_saved(state)), metrics=metrics, force=True)

    def restore(self, like: TrainState, step: int | None = None) -> TrainState:
        """The newest state (or that of `step`), on the shardings of `like`, whose frozen part it keeps.

        Raises:
            InputError: there is no checkpoint, or its arrays do not have the shapes of `like`; names the first that differs.
        """
        step = self.latest if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise InputError(f"run.resume: no checkpoint {'' if step is None else step} in {self.folder}")
        self._check_shapes(like, step)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, _saved(like))
        restored = self._manager.restore(step, args=ocp.args.StandardRestore(target))
        return replace(TrainState(**restored), frozen=like.frozen)

    def close(self) -> None:
        """Waits for pending writes."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _check_shapes(self, like: TrainState, step: int) -> None:
        saved = _shapes(self._manager.item_metadata(step))
        for name, shape in _shapes(_saved(like)).items():
            if saved.get(name) != shape:
                raise InputError(
                    f"run.resume: the checkpoint in {self.folder} holds {name} with shape {saved.get(name)}, "
                    f"the config makes it {shape}: resume with the model, optimizer and loss the run began with"
                )


def saved_steps(folder: Path) -> list[int]:
    """Global steps of the checkpoints in `folder`, oldest first."""
    return sorted(_reader(folder).all_steps()) if folder.is_dir() else []


def restore_params(folder: Path, like: Any, step: int) -> Any:
    """What trains, alone, of a checkpoint: `like` says its shapes. On the first device."""
    where = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = {"params": jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), like)}
    arguments = ocp.args.PyTreeRestore(
        item=target, restore_args=ocp.checkpoint_utils.construct_restore_args(target), partial_restore=True
    )
    return _reader(folder).restore(step, args=arguments)["params"]


def _reader(folder: Path) -> ocp.CheckpointManager:
    """A manager that changes nothing, so that it may look while the run goes on."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # that it changes nothing is no reason for three warnings
    try:
        return ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(read_only=True),
            item_handlers=ocp.PyTreeCheckpointHandler(),
        )
    finally:
        logger.setLevel(level)


def _saved(state: TrainState) -> dict[str, Any]:
    return {name: value for name, value in vars(state).items() if name != "frozen"}


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shape by dotted name; of keys, which are stored as the numbers inside them, nothing."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        ".".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path): tuple(
            leaf.shape
        )
        for path, leaf in leaves
        if hasattr(leaf, "shape") and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    }
