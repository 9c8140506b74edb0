"""Numbers that follow from a config: how a rollout is cut into optimizer steps, and those into micro-batches."""

from grpo_jax.config import Config

AUTO = "auto"


def groups_per_step(config: Config) -> int:
    """Prompts of an optimizer step."""
    return config.update.mini_batch or config.rollout.batch_size


def mini_batches(config: Config) -> int:
    """Optimizer steps of one pass over a rollout."""
    return config.rollout.batch_size // groups_per_step(config)


def micro_batches(config: Config) -> int:
    """Forward and backward passes of an optimizer step."""
    size = micro_batch(config)
    return -(-sequences_per_step(config) // size) if size else 1


def warm_micro_batches(config: Config) -> int:
    """Forward and backward passes of a warm start's step, of no more sequences than an optimizer step's have."""
    size = micro_batch(config)
    return -(-config.warm_start.batch_size // size) if size else 1


def rows_per_device(config: Config, *, shards: int) -> int:
    """Sequences of a micro-batch on each of `shards` devices, padding rows included: shares are equal."""
    share = -(-sequences_per_step(config) // (micro_batches(config) * shards))
    unit = rows_unit(config, shards=shards)
    return -(-share // unit) * unit


def rows_unit(config: Config, *, shards: int) -> int:
    """What the rows of a micro-batch on a device are a multiple of: a group where these must be whole groups, else 1.

    They must be in the group layout; with an automatic one, where the micro-batch that was asked for is whole groups.
    """
    update, group = config.update, config.rollout.group_size
    asked = micro_batch(config)
    whole = 0 < asked <= sequences_per_step(config) and asked % (group * shards) == 0
    return group if update.layout == "group" or (update.layout == "auto" and whole) else 1


def micro_batch(config: Config) -> int:
    """The size asked for; an automatic one is found later, and until then is the whole mini-batch."""
    return 0 if config.update.micro_batch == AUTO else config.update.micro_batch


def sequences_per_step(config: Config) -> int:
    """Sequences of an optimizer step."""
    return groups_per_step(config) * config.rollout.group_size
