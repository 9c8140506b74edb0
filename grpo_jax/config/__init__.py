"""The experiment config: frozen dataclasses, plain data only.

An experiment is a Python file with a module-level `config = Config(...)`. Every field can be overridden on the command
line (`--rollout.group_size 16`). A string that names behaviour is a built-in's name or a user's own `module:attribute`.
Checks that span fields live in `grpo_jax.validation`, and run before anything is compiled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from grpo_jax.config.data import (
    ArithmeticData,
    Component,
    Data,
    DifficultyData,
    FileData,
    MixtureData,
    PresetData,
    ReasoningGymData,
    Scalar,
    TfdsData,
)
from grpo_jax.config.loss import (
    DriftFixConfig,
    HistoryConfig,
    LossConfig,
    SamplerCorrectionConfig,
)
from grpo_jax.models.config import ModelConfig, Remat, Target


@dataclass(frozen=True)
class PretrainedModel:
    """A model that already exists; its architecture is read from its files."""

    path: str = ""
    """A Transformers folder, a .gguf file, package:NAME (the .gguf file in a Python package), or org/name@commit."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Compute dtype of the blocks; norms, softmax, head and log-probabilities are float32 always."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Storage dtype of the model's own parameters; adapters are float32 always."""
    remat: Remat = "full"
    """What the backward pass computes again instead of storing it: each block whole (full, least memory), all but the
    outputs of its projections (dots), or nothing (none, fastest)."""
    lora_rank: int = 0
    """Inner width of LoRA adapters, which then train alone; 0 trains every parameter."""
    lora_alpha: float = 32.0
    """LoRA: adapters are scaled by lora_alpha / lora_rank."""
    lora_targets: tuple[Target, ...] = ("query", "key", "value", "out", "gate", "up", "down")
    """LoRA: projections that get an adapter, in every layer."""


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["characters", "transformers"] = "characters"
    """"characters" is built in (ASCII characters, else UTF-8 bytes); "transformers" loads `path`."""
    path: str = ""
    """Where a Transformers tokenizer is, in the forms of PretrainedModel.path; empty takes a pretrained model's own."""
    chat: bool = False
    """Wrap text prompts as a user message and apply the chat template."""


@dataclass(frozen=True)
class RewardFunction:
    """One reward and its weight in the sum."""

    name: str = "exact_match"
    """exact_match, number_match, format, or module:attribute of your own."""
    weight: float = 1.0
    """Factor in the summed reward."""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """Keyword arguments of the reward function."""
    after: str = ""
    """Judge only what follows the last of this text, e.g. </think>; a completion without it is judged as empty."""


@dataclass(frozen=True)
class RewardConfig:
    """How completions are judged."""

    functions: tuple[RewardFunction, ...] = (RewardFunction(),)
    """Rewards that are weighted and summed; each is also logged apart as rewards/<name>/mean."""
    on_failure: Literal["error", "unscored"] = "error"
    """What an exception, a NaN or a None does: stop the run, or leave the sample out of its group's statistics."""


@dataclass(frozen=True)
class RolloutConfig:
    """The sampling loop."""

    batch_size: int = 32
    """Prompts per step (B)."""
    group_size: int = 8
    """Completions per prompt (G), at least 2."""
    max_prompt_length: int = 64
    """Longest prompt, tokens; a longer one is an error at load time, unless drop_long_prompts."""
    drop_long_prompts: bool = False
    """Leave problems with longer prompts out, and say how many."""
    max_completion_length: int = 64
    """Longest completion, tokens, stop token included, and an environment's answers."""
    temperature: float = 1.0
    """Sampling temperature; the trainer's log-probabilities are taken at the same temperature."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 is off."""
    top_p: float = 1.0
    """Sample within this probability mass; 1 is off."""
    min_p: float = 0.0
    """Sample among tokens at least this likely, relative to the likeliest; 0 is off."""
    repetition_penalty: float = 1.0
    """Positive logits of tokens seen in prompt or completion are divided by this, negative ones multiplied; 1 is off."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of single tokens, by id."""
    forbidden_ids: tuple[int, ...] = ()
    """Tokens never drawn."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, besides the tokenizer's stop tokens; with an environment, a turn."""
    environment: str = ""
    """What answers the policy between its turns: calculator, or module:attribute of your own; empty is one turn."""
    environment_options: Mapping[str, Scalar] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    max_turns: int = 4
    """With an environment: most turns of the policy; all turns and answers share max_completion_length."""
    allow_truncated_sampling: bool = False
    """Train on samples of a distribution that top_k, top_p, min_p, repetition_penalty, logit_bias or forbidden_ids changed,
    although the trainer's is the policy's own; loss.sampler_correction corrects for that."""
    dynamic_sampling: bool = False
    """Draw prompts until batch_size groups have rewards that are not all alike; the others do not train (DAPO)."""
    max_rounds: int = 10
    """dynamic_sampling: most times batch_size prompts are drawn in a step; what is missing then leaves the batch smaller."""
    lag: Literal[0, 1] = 0
    """1 samples the next step's rollout while this step updates, so every rollout is one step's updates old."""
    slots: int = 256
    """Completions decoded at one time; a finished one makes room for the next."""
    devices: int = 0
    """Devices of their own for sampling, the last of those there are; 0 samples on the devices of the mesh."""
    tensor: int = 1
    """devices: how many of them compute the same completions together, as mesh.tensor does."""
    quantize: Literal["none", "int8"] = "none"
    """int8 samples with the matrices of attention and MLP in 8 bits (extra: int8), the embedding, the head and norms as
    they are; loss.sampler_correction corrects for it."""
    record: bool = False
    """Write every rollout into the run's folder, a file a step (rollouts/step-000001.parquet, …), with its log-probs."""
    replay: str = ""
    """Train on recorded rollouts in place of sampling: the rollouts folder of a run, or a .jsonl or .parquet file of such
    rows. Data, tokenizer, seed and sizes must be those of the recording, and dynamic_sampling, of which all recorded rounds
    are played back; rewards are judged anew, evaluations sampled."""
    gap_warning: float = 0.02
    """Warn when sampler and trainer disagree on a token's log-probability by more than this on average; 0 never warns."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with global-norm clipping."""

    learning_rate: float = 1e-6
    """Peak learning rate."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up from 0."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """What follows the warm-up; cosine and linear decay to 0 at the last optimizer step."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay, on matrices only."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    first_moment_dtype: Literal["float32", "bfloat16"] = "float32"
    """Storage of the first moment; bfloat16 halves its memory. The second moment has the parameters' dtype."""


@dataclass(frozen=True)
class UpdateConfig:
    """How one rollout becomes optimizer steps."""

    epochs: int = 1
    """Passes over a rollout."""
    mini_batch: int = 0
    """Prompts per optimizer step; 0 takes the whole rollout."""
    micro_batch: int | Literal["auto"] = 0
    """Sequences per forward and backward pass, over all devices; 0 takes the whole mini-batch, auto the largest that fits:
    the update is compiled at a few sizes before the run begins. A warm start's passes have no more either."""
    memory_budget_gib: float = 0.0
    """micro_batch auto: GiB per device that the update and its state may fill; 0 takes 90 % of what the device has (on a
    CPU, of the machine's memory)."""
    layout: Literal["auto", "plain", "group", "packed"] = "auto"
    """What a row of the decoder holds: a sequence (plain), a prompt and all its completions (group: a prompt is computed
    once), or several sequences (packed: without padding). auto takes group where every micro-batch on every device is
    whole groups, or would be by micro_batch; else packed, and plain where mesh.fsdp or mesh.tensor are above 1. Where the
    last groups do not go round the devices, padding groups fill the places."""
    attention: Literal["auto", "einsum", "cudnn", "splash"] = "auto"
    """How attention is computed: einsum anywhere, or without storing scores by splash (group, on TPU) or cudnn (plain and
    packed, on NVIDIA GPUs, bfloat16). auto takes the kernel where it can."""
    sizes: int = 4
    """Sizes a micro-batch is compiled in, by even steps; each takes the smallest that its lengths allow. Compile time
    grows with it."""
    old_log_probs: Literal["trainer", "sampler"] = "trainer"
    """Whose log-probabilities the ratios are taken against, fixed for all updates of a rollout: the trainer's own, for
    which a pass without gradients is made where a rollout has several updates, or the sampler's, which need none."""
    head_memory_mib: int = 512
    """MiB per device for logits that wait for the backward pass. If a micro-batch has more, none wait: they are computed
    again, a block of the vocabulary at a time, and take next to nothing."""
    offload_reference: bool = False
    """Keep the KL reference's parameters in host memory between the passes that need them. (On a CPU that is the same
    memory.)"""
    max_skipped: int = 10
    """Optimizer steps in a row that may be skipped for non-finite gradients before the run stops."""


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised training on reference answers before GRPO."""

    steps: int = 0
    """Optimizer steps; 0 skips the stage."""
    batch_size: int = 128
    """Problems per step."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, warmup_steps=50, weight_decay=0.01)
    )
    """Its own optimizer; the policy stage starts from fresh moments."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Accuracy on held-out problems."""

    every: int = 20
    """Steps between evaluations; 0 evaluates only before and after."""
    problems: int = 256
    """Held-out problems used; 0 takes all."""
    samples: int = 4
    """Completions per problem (k of avg@k and the largest k of pass@k)."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token, so that samples are to be 1."""
    success: str = ""
    """Reward that says whether a completion is right (it is at least 1); empty takes the first reward."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept on disk."""

    every: int = 20
    """Steps between checkpoints; 0 keeps only the last."""
    keep: int = 2
    """Newest checkpoints kept, besides the best."""


@dataclass(frozen=True)
class MeshConfig:
    """How devices are arranged: data x fsdp x tensor of them. `grpo_jax/models/axes.py` says what each splits."""

    data: int = 0
    """Copies of the model, each with its own rows of the batch; 0 takes the devices the other two leave."""
    fsdp: int = 1
    """Devices that share one copy's parameters, gradients and moments, and split its rows further."""
    tensor: int = 1
    """Devices that compute the same rows together, each some of the heads, of the MLP and of the vocabulary."""


@dataclass(frozen=True)
class DistributedConfig:
    """Several hosts (processes), one run: the same command on each. `--distributed` alone turns it on.

    It is where a run runs, not what it is, so the config saved with a run leaves it out.
    """

    enabled: bool = False
    """Join the other processes before anything else."""
    coordinator: str = ""
    """HOST:PORT of process 0, for all; empty reads JAX_COORDINATOR_ADDRESS, or lets JAX find it (TPU, SLURM, Kubernetes)."""
    num_processes: int = 0
    """Processes in the run; 0 reads JAX_NUM_PROCESSES, or lets JAX find it."""
    process_id: int = -1
    """This process, from 0; -1 reads JAX_PROCESS_ID, or lets JAX find it."""
    timeout_seconds: int = 300
    """A host that is dead, or this much behind the others, ends the run on all of them. Above the longest difference
    between hosts in sampling and judging their share of a rollout."""


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives and how long it lasts."""

    folder: str = "runs/run"
    """Folder for the resolved config, metrics, checkpoints and report."""
    seed: int = 0
    """Seed of everything: initial parameters, data order, sampling."""
    resume: bool = False
    """Continue the run in the folder from its newest checkpoint."""
    wandb_project: str = ""
    """Weights & Biases project to log to besides (extra: wandb); empty for none."""


@dataclass(frozen=True)
class TrainConfig:
    """The policy stage."""

    steps: int = 100
    """Rollouts (each is epochs x mini-batches optimizer steps)."""


@dataclass(frozen=True)
class Config:
    """One experiment, whole."""

    run: RunConfig = field(default_factory=RunConfig)
    data: Data = field(default_factory=ArithmeticData)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig | PretrainedModel = field(default_factory=ModelConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
