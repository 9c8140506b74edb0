"""What the order of the decode cache costs a TPU: the decode program compiled for one v5e chip, on a machine without.

    pip install libtpu && python experiments/benchmarks/cache_order.py

28 layers, width 1024, 8 key heads of 128, bfloat16 (Qwen3-0.6B's shape but for the vocabulary), 32 slots of 1024
tokens, groups of 8 on prompts of 512. Nothing is executed. About a minute per order.
"""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ |= {"TPU_WORKER_ID": "0", "TPU_ACCELERATOR_TYPE": "v5litepod-8"}

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.rollout import cache, decode

SLOTS, GROUP, PROMPT, COLUMNS = 32, 8, 512, 1024
ROWS = 2 * SLOTS // GROUP
MODEL = ModelConfig(
    vocab_size=32768,
    num_layers=28,
    width=1024,
    mlp_width=3072,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    max_position=4096,
    dtype="bfloat16",
    param_dtype="bfloat16",
)
GIB = 2**30


def compiled(device, *, positions_first: bool):
    """The decode program for this device, and the cache it decodes with, as shapes."""
    graphdef, params = nnx.split(nnx.eval_shape(lambda: Decoder(MODEL, rngs=nnx.Rngs(0))))

    def start():
        return decode.start(
            MODEL,
            rows=ROWS,
            prompt_tokens=PROMPT,
            slots=SLOTS,
            columns=COLUMNS,
            max_tokens=COLUMNS,
            penalised=False,
            positions_first=positions_first,
        )

    def rules():
        return decode.Rules({"temperature": jnp.float32(1)}, jnp.zeros(8, jnp.int32), None, None, 0)

    state = jax.eval_shape(start)
    whole = jax.ShapeDtypeStruct((), jnp.int32)
    seating = cache.Seating(
        *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((SLOTS,), (SLOTS,), (ROWS, GROUP)))
    )
    there = SingleDeviceSharding(device)
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there),
        (params, state, seating, jax.eval_shape(rules), whole, whole),
    )
    return decode.decode.lower(graphdef, *arguments).compile(), state.cache


def main() -> None:
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name="v5e:1x1", chips_per_host_bounds=(1, 1, 1)
    )
    print("| order | cache, GiB | temporaries, GiB | peak, GiB |\n|---|---|---|---|")
    for positions_first in (True, False):
        program, held = compiled(topology.devices[0], positions_first=positions_first)
        memory = program.memory_analysis()
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(held))
        order = "slot, position, head, head_dim" if positions_first else "slot, head, head_dim, position"
        numbers = (size, memory.temp_size_in_bytes, memory.peak_memory_in_bytes)
        print(f"| [{order}] | " + " | ".join(f"{number / GIB:.2f}" for number in numbers) + " |", flush=True)


if __name__ == "__main__":
    main()
