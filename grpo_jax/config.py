"""The experiment config: frozen dataclasses, plain data only.

An experiment is a Python file with a module-level `config = Config(...)`. Every field can be overridden on the command
line (`--rollout.group_size 16`). A string that names behaviour is a built-in's name or a user's own `module:attribute`.
Checks that span fields live in `validate`, and run before anything is compiled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from grpo_jax.models.config import ModelConfig, Remat, Target

Scalar = int | float | str | bool


@dataclass(frozen=True)
class ArithmeticData:
    """Sums, differences and products of whole numbers, made on the fly: "37+85=" with answer "122"."""

    operations: tuple[Literal["+", "-", "*"], ...] = ("+",)
    """Operators to draw from."""
    max_digits: int = 2
    """Largest number of digits of an operand."""
    carries: Literal["any", "required"] = "any"
    """Whether an addition must carry (a subtraction, borrow) in at least one column."""
    max_terms: int = 2
    """Largest number of operands of a sum, drawn uniformly from 2 up; differences and products have two."""
    prompt: str = "{question}="
    """Prompt template; {question} is the problem, as in 37+85."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    size: int = 20_000
    """Problems to draw before duplicates are removed."""
    held_out_fraction: float = 0.1
    """Share of distinct prompts kept for evaluation, by a hash of the prompt, so the two can never overlap."""


@dataclass(frozen=True)
class ReasoningGymData:
    """Any task of reasoning-gym (extra: reasoning-gym)."""

    task: str = "chain_sum"
    """Name of the reasoning-gym task."""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """Options of the task, as reasoning-gym names them."""
    level: int | None = None
    """Level of the task's curriculum, 0 the easiest; options override it. None takes the task's defaults."""
    size: int = 5_000
    """Problems to draw before duplicates are removed."""
    prompt: str = "{question}\n"
    """Prompt template; {question} is the task's question."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    held_out_fraction: float = 0.1
    """Share of distinct prompts kept for evaluation, by a hash of the prompt, so the two can never overlap."""


@dataclass(frozen=True)
class FileData:
    """Problems from files."""

    path: str = ""
    """A .jsonl, .jsonl.gz, .csv, .parquet or .arrow file, a folder or a pattern of them, or hf://datasets/OWNER/NAME/PATTERN."""
    prompt: str = "{question}\n"
    """Prompt template over the row's fields, e.g. "{Body} {Question}"."""
    messages_field: str | None = None
    """Field that holds chat messages (a list of {role, content}); used in place of `prompt`."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    answer_field: str = "answer"
    """Field that holds the reference answer."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer, e.g. r"####\\s*(.+)" for GSM8K; None takes the field whole."""
    held_out_path: str | None = None
    """A separate file of evaluation problems; a prompt found in both files is an error."""
    held_out_fraction: float = 0.1
    """Without held_out_path: share of distinct prompts kept for evaluation, by a hash of the prompt."""
    allow_overlap: bool = False
    """Warn of prompts that are in both files, in place of refusing them."""


@dataclass(frozen=True)
class TfdsData:
    """Problems from a data set prepared by tensorflow-datasets, read without TensorFlow."""

    name: str = "gsm8k"
    """Name of the data set, with a config after a slash: math_dataset/arithmetic__add_or_sub."""
    split: str = "train"
    """Split to train on; it can be sliced, as in train[:10%], if the data set is stored as array_record."""
    held_out_split: str | None = None
    """Split to evaluate on; a prompt found in both is an error."""
    data_dir: str | None = None
    """Folder of prepared data sets; None is tensorflow-datasets' own."""
    prompt: str = "{question}\n"
    """Prompt template over the features, e.g. "{question}\n"."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    answer_field: str = "answer"
    """Feature that holds the reference answer."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer; None takes the feature whole."""
    held_out_fraction: float = 0.1
    """Without held_out_split: share of distinct prompts kept for evaluation, by a hash of the prompt."""
    allow_overlap: bool = False
    """Warn of prompts that are in both splits, in place of refusing them."""


@dataclass(frozen=True)
class PresetData:
    """A well-known problem set, with its fields, prompt and answers as `grpo_jax.tasks.presets` describes them."""

    name: str = "gsm8k"
    """gsm8k, math, math500, dapo17k, polaris, svamp, aime24, aime25, amc23, minerva, olympiadbench, hmmt25, humaneval,
    mbpp or livecodebench."""
    path: str = ""
    """Where its file is, as in FileData.path; empty looks in the folder that GRPO_JAX_DATA names."""
    held_out_path: str | None = None
    """A separate file of evaluation problems of the same layout."""
    prompt: str | None = None
    """Prompt template in place of the preset's."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str | None = None
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer.
    None takes the preset's own."""
    held_out_fraction: float = 0.1
    """Without held_out_path: share of distinct prompts kept for evaluation, by a hash of the prompt."""
    allow_overlap: bool = False
    """Warn of prompts that are in both files, in place of refusing them."""


@dataclass(frozen=True)
class Component:
    """One source of a mixture."""

    source: ArithmeticData | ReasoningGymData | FileData | TfdsData | PresetData = field(
        default_factory=ArithmeticData
    )
    """Where its problems come from."""
    weight: float = 1.0
    """Its share of the training problems drawn, relative to the others'."""


@dataclass(frozen=True)
class MixtureData:
    """Problems of several sources, drawn by weight."""

    components: tuple[Component, ...] = ()
    """The sources and their weights."""


@dataclass(frozen=True)
class DifficultyData:
    """Problems of a source, drawn by how difficult they are."""

    source: ArithmeticData | ReasoningGymData | FileData | TfdsData | PresetData = field(
        default_factory=ArithmeticData
    )
    """Where the problems come from."""
    field: str = "difficulty"
    """Metadata that says how difficult a problem is: a number, a fraction such as 3/8, or a text that ends in a number."""
    edges: tuple[float, ...] = ()
    """Increasing bounds between strata; stratum i holds difficulties from edge i - 1 up to below edge i."""
    weights: tuple[float, ...] = (1.0,)
    """Share of the training problems drawn from each stratum, one more than there are edges; 0 leaves a stratum out."""


Data = ArithmeticData | ReasoningGymData | FileData | TfdsData | PresetData | MixtureData | DifficultyData


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
    environment: str = ""
    """What answers the policy between its turns: calculator, or module:attribute of your own; empty is one turn."""
    environment_options: Mapping[str, Scalar] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    max_turns: int = 4
    """With an environment: most turns of the policy; all turns and answers share max_completion_length."""
    allow_truncated_sampling: bool = False
    """Train on samples of a top-k or top-p truncated distribution although the trainer's is not truncated."""
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
    """int8 samples with the blocks' matrices in 8 bits (extra: int8); loss.sampler_correction corrects for it."""
    gap_warning: float = 0.02
    """Warn when sampler and trainer disagree on a token's log-probability by more than this on average; 0 never warns."""


@dataclass(frozen=True)
class HistoryConfig:
    """HA-DW: a belief about the policy's success rate reweighs advantages by difficulty (arXiv 2601.08521)."""

    update: Literal["soft", "window", "ema", "fixed"] = "window"
    """How the belief meets a new batch mean."""
    window: int = 10
    """Batch means (window), time constant (ema) or past beliefs (soft) looked back on."""
    eta: float = 1.0
    """soft: factor of the beliefs' standard deviation in the step size."""
    eta_min: float = 0.05
    """soft: smallest step size; at 0 equal beliefs can never move again."""
    initial: float | None = None
    """Belief before the first batch; None takes the first batch's mean."""
    scale: float = 1.3
    """Lambda, the factor on every weight."""
    anchor: Literal["prior", "posterior"] = "prior"
    """Weigh with the belief before this batch (the paper) or after it (the authors' code)."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest summed reward, mapped to [0, 1] first."""


@dataclass(frozen=True)
class DriftFixConfig:
    """DFPO: sequence weights transformed inside a group so that shared tokens' gradients cancel (arXiv 2604.13088v1)."""

    transform: Literal["min_replace", "orth_proj", "none"] = "min_replace"
    """How a group's sequence ratios are transformed."""
    cancel_under_aggregation: bool = False
    """Transform ratio x token weight, so that the sum cancels under rules that weigh a group's sequences differently."""
    stop_gradient: bool = True
    """Hold the transformed ratios constant; False is the paper's ablation."""
    global_scale: bool = False
    """One transform over the mini-batch in place of the group's; the paper's other ablation."""


@dataclass(frozen=True)
class SamplerCorrectionConfig:
    """Correction for a sampler whose log-probabilities are not the trainer's."""

    kind: Literal["truncate", "band"] = "truncate"
    """Truncated importance weights, or a mask outside a band."""
    level: Literal["token", "sequence"] = "token"
    """Per token, or by the sequence's geometric mean."""
    low: float = 0.5
    """band: smallest ratio that trains."""
    high: float = 2.0
    """Largest weight (truncate) or largest ratio that trains (band)."""


@dataclass(frozen=True)
class LossConfig:
    """The objective: -sum(token weight x surrogate), plus regularisers. Names are those of grpo_jax.losses."""

    baseline: Literal["group_mean", "leave_one_out"] = "group_mean"
    """What is subtracted from a reward."""
    scale: Literal["group_std", "batch_std", "batch_advantage_std", "none"] = "group_std"
    """What a centred reward is divided by."""
    ddof: int = 0
    """Delta degrees of freedom of the standard deviation (TRL and verl use 1)."""
    eps: float = 1e-6
    """Added to the standard deviation."""
    aggregation: str = "balanced"
    """sequence, sequence_sum, token, batch_token, constant, balanced, balanced_mass, balanced_unit, or module:attribute."""
    surrogate: str = "clip"
    """clip, cispo, reinforce, sapo, or module:attribute."""
    ratio: Literal["token", "sequence", "sequence_token", "sequence_product"] = "token"
    """What the importance ratio is taken over; sequence is GSPO's, sequence_product DFPO's."""
    clip_low: float = 0.2
    """clip: the ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """clip: the ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = None
    """clip: with a negative advantage the surrogate is at least dual_clip x advantage; None for none."""
    symmetric: bool = False
    """clip: drop the min, so that a ratio outside the band loses its gradient whatever the advantage's sign."""
    ratio_cap: float = 5.0
    """cispo: largest weight of a token."""
    tau_positive: float = 1.0
    """sapo: temperature of the gate for positive advantages."""
    tau_negative: float = 1.05
    """sapo: temperature of the gate for negative advantages."""
    kl_coef: float = 0.0
    """Weight of the KL to the reference policy; 0 runs no reference model at all."""
    kl: Literal["k1", "k2", "k3"] = "k2"
    """KL estimator used as the loss; k2's gradient is that of KL(policy || reference)."""
    entropy_coef: float = 0.0
    """Weight of the mean token entropy, which is maximised."""
    mask_truncated: bool = False
    """Drop the tokens of completions that hit the length limit; their reward stays in the baseline."""
    history: HistoryConfig | None = None
    """HA-DW; None for none."""
    drift_fix: DriftFixConfig | None = None
    """DFPO; None for none. Takes surrogate reinforce and ratio sequence or sequence_product."""
    sampler_correction: SamplerCorrectionConfig | None = None
    """Correction for sampler/trainer mismatch; None for none."""


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
    the update is compiled at a few sizes before the run begins."""
    memory_budget_gib: float = 0.0
    """micro_batch auto: GiB per device that the update and its state may fill; 0 takes 90 % of what the device has (on a
    CPU, of the machine's memory)."""
    layout: Literal["auto", "plain", "group", "packed"] = "auto"
    """What a row of the decoder holds: a sequence (plain), a prompt and all its completions (group: a prompt is computed
    once), or several sequences (packed: without padding). auto takes group where every micro-batch on every device is
    whole groups, else packed, and where mesh.fsdp or mesh.tensor split rows or tokens plain."""
    attention: Literal["auto", "einsum", "cudnn", "splash"] = "auto"
    """How attention is computed: einsum anywhere, or without storing scores by splash (group, on TPU) or cudnn (plain and
    packed, on NVIDIA GPUs, bfloat16). auto takes the kernel where it can."""
    sizes: int = 4
    """Sizes a micro-batch is compiled in, by even steps; each takes the smallest that its lengths allow. Compile time
    grows with it."""
    old_log_probs: Literal["trainer", "sampler"] = "trainer"
    """Whose log-probabilities the ratios are taken against, fixed for all updates of a rollout: the trainer's own, for
    which a pass without gradients is made where a rollout has several updates, or the sampler's, which need none."""
    head_chunk: int = 0
    """Tokens per device whose logits exist at one time; 0 takes as many as head_memory_mib has room for. Where that is a
    whole micro-batch the backward pass computes no logits again."""
    head_memory_mib: int = 512
    """MiB per device for logits and their gradients."""
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
    """Sampling temperature."""
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
