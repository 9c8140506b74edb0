"""GPUs described to XLA, as its `GpuTargetConfigProto` in text form: facts of NVIDIA's Hopper data sheets and tuning guide.

Without a GPU nothing is autotuned, so the kernels and workspaces chosen on a card may differ from the ones compiled here.
"""

HOPPER = """
gpu_device_info {{
  name: "{name}" device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 9.0a"
  cuda_compute_capability {{ major: 9 feature_extension: ACCELERATED_FEATURES }}
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  device_memory_size: {memory} memory_bandwidth: {bandwidth} l2_cache_size: 52428800
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  device_address_bits: 64 ecc_enabled: true pcie_bandwidth: 34359738368
  runtime_version: "12.8.0" driver_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
  device_interconnect_info {{ active_links: 18 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""

CARDS = {
    "h100": ("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000),
    "h200": ("NVIDIA H200", 150_000_000_000, 4_800_000_000_000),
}
"""Name, bytes of memory and bytes/s."""


def target_config(kind: str) -> str:
    """The description of one of `CARDS`."""
    name, memory, bandwidth = CARDS[kind]
    return HOPPER.format(name=name, memory=memory, bandwidth=bandwidth)
