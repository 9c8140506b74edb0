"""The sampler of a run: on the training mesh or on devices of its own, taking turns if there is an environment."""

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from grpo_jax.config import RolloutConfig
from grpo_jax.environments import Environment
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.rollout.engine import Engine, NativeEngine
from grpo_jax.rollout.turns import Conversing
from grpo_jax.training import sharding


def make_engine(
    graphdef: nnx.GraphDef,
    tokenizer: Tokenizer,
    options: RolloutConfig,
    *,
    environment: Environment | None,
    mesh: Mesh,
) -> Engine:
    """The engine of a run that trains on `mesh`.

    Raises:
        ValueError: the config wants what this machine cannot give.
    """
    if options.devices and jax.process_count() > 1:
        raise ValueError(
            f"rollout.devices: got {options.devices}, expected 0 with {jax.process_count()} processes: every process"
            " takes part in sampling"
        )
    where = sharding.sampling_mesh(mesh, devices=options.devices, tensor=options.tensor)
    settings = {
        "max_prompt_length": longest_prompt(options),
        "slots": slots_on(where, options),
        "mesh": where,
        "quantize": options.quantize,
    }
    if environment is None and not options.stop_strings:
        return NativeEngine(graphdef, **settings)
    engine = NativeEngine(
        graphdef,
        chunk=16,  # a text that ends a turn or a completion is only seen when the host looks
        to_text=tokenizer.decode,
        **settings,
    )
    if environment is None:
        return engine
    return Conversing(engine, max_turns=options.max_turns, prompt_size=options.max_prompt_length)


def longest_prompt(options: RolloutConfig) -> int:
    """Tokens that the engine may have to read: with an environment a later turn goes on from all that was said before."""
    return options.max_prompt_length + (options.max_completion_length if options.environment else 0)


def slots_on(mesh: Mesh | AbstractMesh, options: RolloutConfig) -> int:
    """`rollout.slots`, rounded up to equal shares for the devices that rows are dealt over."""
    return options.slots + -options.slots % sharding.row_shards(mesh)
