"""Describes chips that are not here to JAX, so that programs can be compiled for them."""

import importlib.util

import jax
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from grpo_jax import validation
from grpo_jax.config import Config
from grpo_jax.models.config import ModelConfig
from grpo_jax.planning import gpus
from grpo_jax.planning.targets import Target
from grpo_jax.training import sharding
from grpo_jax.training.policy import architecture_of, sized_for
from grpo_jax.training.setup import tokenizer_of


def architecture_for(config: Config) -> ModelConfig:
    """The architecture of a config; the tokenizer is asked only where the config leaves the vocabulary to it."""
    architecture = architecture_of(config.model)
    return architecture if architecture.vocab_size else sized_for(architecture, tokenizer_of(config))


def check_installed(target: Target) -> None:
    """Raises ImportError, naming the extra, where the compiler for `target` is missing."""
    if target.chip.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        raise ImportError('planning for TPUs needs their compiler: pip install "grpo_jax[plan]"')
    if target.chip.platform == "cuda" and importlib.util.find_spec("jax_cuda12_plugin") is None:
        raise ImportError('planning for GPUs needs their compiler: pip install "grpo_jax[cuda]"')


def mesh_of(config: Config, target: Target) -> Mesh:
    """The mesh of a config on the target's devices; compile only."""
    sizes = validation.mesh_shape(config.mesh, devices=target.devices - config.rollout.devices)
    count = sizes[0] * sizes[1] * sizes[2]
    return jax.make_mesh(
        sizes,
        (sharding.DATA, sharding.FSDP, sharding.TENSOR),
        devices=described(target)[:count],
        axis_types=(AxisType.Auto,) * 3,
    )


def described(target: Target) -> list[jax.Device]:
    """The target's devices.

    Raises:
        ValueError: the compiler knows no such slice.
    """
    if target.chip.platform == "cpu":
        return jax.devices("cpu")
    if target.chip.platform == "cuda":
        config = gpus.target_config(target.name.partition(":")[0])
        shape = "x".join(map(str, (1, 1, *target.shape)[-3:]))
        return list(
            topologies.get_topology_desc(
                platform="cuda", topology_name="", target_config=config, topology=shape
            ).devices
        )
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if target.devices == target.chip.cores else {}
    topology = topologies.get_topology_desc(
        platform=target.chip.platform, topology_name=target.name, **bounds
    )
    found = list(topology.devices)
    if len(found) != target.devices:
        raise ValueError(f"{target.name} has {len(found)} devices here, not the {target.devices} expected")
    return found
