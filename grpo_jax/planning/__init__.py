"""What a run would need on chips that are not here: `grpo-jax plan` compiles its programs for them and reads the result.

    targets    the chips, and what a name such as v5p:2x2x2 means
    devices    describes them to JAX (gpus: in XLA's own terms)
    worker     compiles one program, in a process of its own
    compiling  runs that process under a time limit
    hlo        collectives of a compiled program
    sizes      memory in closed form, before anything is compiled
    cost       FLOPs, bytes and the roofline
    verdict    fits, does not fit, or unknown
    search     micro-batch, rematerialisation and mesh
    report     what is printed

Nothing runs on the chips, so numerics, kernels' speed and overlap are not seen.
"""
