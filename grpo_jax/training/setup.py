"""Everything a run needs, built from its config. Every mistake of the reader's is raised here, before anything compiles."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import Mesh

from grpo_jax import amounts, environments, experiment, keys, tasks, validation
from grpo_jax.config import Config, DistributedConfig, PretrainedModel
from grpo_jax.losses import diagnostics
from grpo_jax.losses import objective as objectives
from grpo_jax.losses.groups import group_rows
from grpo_jax.models.tokenizers import Tokenizer, load_tokenizer
from grpo_jax.rewards import scoring
from grpo_jax.rollout import ReplayEngine
from grpo_jax.rollout.background import Background, Pending
from grpo_jax.tasks.splitting import Mixture, shorten
from grpo_jax.training import draws, fitting, hosts, programs, replaying, sharding
from grpo_jax.training.checkpoint import Checkpoints
from grpo_jax.training.engines import make_engine
from grpo_jax.training.log_probs import make_log_probs
from grpo_jax.training.policy import Policy, architecture_of, sized_for
from grpo_jax.training.programs import build_optimizer
from grpo_jax.training.states import first_state
from grpo_jax.training.update import Step, make_supervised_update
from grpo_jax.types import Problem, TrainState

RESUMABLE_CHANGES = (
    "run.folder",
    "run.resume",
    "run.wandb_project",
    "train.steps",
    "evaluation.",
    "checkpoint.",
    "distributed.",
    "mesh.",
)
"""Fields that a resumed run may change without ceasing to be the same run."""


class Example(NamedTuple):
    """A problem and the token ids of its prompt: the very ids that are sampled from and trained on."""

    problem: Problem
    prompt_ids: Sequence[int]


class Started(NamedTuple):
    """A rollout under way, and what it is of."""

    examples: Sequence[Example]
    """All of its prompts, of which this host samples those at `places`."""
    places: range
    pending: Pending | None = None
    params: Any = None
    """What it is sampled with, as the engine was given it; None where that is held, or nothing is sampled."""

    def own_examples(self) -> list[Example]:
        """Those this host samples; a place beyond the last repeats it, and what comes of that is dropped."""
        return [self.examples[min(place, len(self.examples) - 1)] for place in self.places]


@dataclass(frozen=True)
class Run:
    """The fixed parts of a run; all that changes is in its `TrainState`."""

    config: Config
    folder: Path
    train: Sequence[Example]
    held_out: Sequence[Example]
    mixture: Mixture | None
    tokenizer: Tokenizer
    mesh: Mesh
    sampler: Background
    environment: environments.Environment | None
    replay: ReplayEngine | None
    """What is trained on in place of sampling, if anything is."""
    ahead: dict[int, Started]
    """Rollouts under way for a step to come, by step: one at most, with rollout.lag."""
    objective: objectives.Objective
    advantages: Callable
    rewards: Sequence[scoring.WeightedReward]
    policy: Policy
    optimizer: optax.GradientTransformation
    micro_batches: int
    """Forward and backward passes of an optimizer step."""
    update: Step
    log_prob_pass: Callable
    warm_optimizer: optax.GradientTransformation
    warm_update: Step
    checkpoints: Checkpoints

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer steps that one rollout is used for."""
        return self.config.update.epochs * amounts.mini_batches(self.config)


def prepare(config: Config) -> Run:
    """Checks the config, loads problems, tokenizer and rewards, and opens the run folder.

    Raises:
        ValueError: names the field, what came and what was expected.
    """
    architecture = architecture_of(config.model)
    validation.validate(config, devices=jax.device_count(), architecture=architecture)
    if config.run.wandb_project and find_spec("wandb") is None:
        raise ValueError('run.wandb_project: logging there needs the extra: pip install "grpo_jax[wandb]"')
    split = tasks.build(config.data, chat=config.tokenizer.chat)
    tokenizer = tokenizer_of(config)
    limit = config.rollout.max_prompt_length
    if config.rollout.drop_long_prompts:
        split = drop_long(split, tokenizer, limit=limit)
    train = encode(split.train, tokenizer, limit=limit, what="training")
    held_out = encode(split.held_out, tokenizer, limit=limit, what="held-out")
    rewards = scoring.build(config.reward.functions)
    scoring.check(rewards, [*split.train, *split.held_out])
    environment = environments.build(config.rollout.environment, config.rollout.environment_options)
    architecture = sized_for(architecture, tokenizer)
    draws.check_draws(
        config.rollout, tokenizer=tokenizer, environment=environment, vocab_size=architecture.vocab_size
    )
    replay = replaying.open_replay(config)
    if replay is not None and config.train.steps:  # a recording of other problems shows at the first step
        options = {"batch_size": config.rollout.batch_size, "seed": config.run.seed, "mixture": split.mixture}
        first = [example.prompt_ids for example in tasks.batch(train, cursor=0, **options)]
        replaying.replayed(replay, first, config.rollout, step=1, vocab_size=architecture.vocab_size)
    trainer_devices = jax.device_count() - config.rollout.devices
    shape = validation.mesh_shape(config.mesh, devices=trainer_devices, hosts=hosts.count())
    mesh = sharding.make_mesh(*shape)
    if config.update.offload_reference and not sharding.has_host_memory(mesh):
        raise ValueError(
            "update.offload_reference: got True, expected False: JAX offers no pinned host memory beside "
            f"{mesh.devices.flat[0].device_kind}"
        )
    if config.update.micro_batch == amounts.AUTO and config.run.resume:  # as it was found before
        update = replace(config.update, micro_batch=saved_config(Path(config.run.folder)).update.micro_batch)
        config = replace(config, update=update)
    config = fitting.with_micro_batch(config, architecture, mesh=mesh)
    built = programs.build(config, architecture, mesh=mesh)
    folder = hosts.first_says(open_folder, config)
    warm_optimizer = build_optimizer(config.warm_start.optimizer, config.warm_start.steps)
    return Run(
        config=config,
        folder=folder,
        train=train,
        held_out=held_out,
        mixture=split.mixture,
        tokenizer=tokenizer,
        mesh=mesh,
        sampler=Background(
            make_engine(built.policy.graphdef, tokenizer, config.rollout, environment=environment, mesh=mesh)
        ),
        environment=environment,
        replay=replay,
        ahead={},
        objective=built.objective,
        advantages=make_advantages(
            built.objective,
            num_groups=config.rollout.batch_size,
            weights=[reward.weight for reward in rewards],
        ),
        rewards=rewards,
        policy=built.policy,
        optimizer=built.optimizer,
        micro_batches=built.micro_batches,
        update=built.update,
        log_prob_pass=built.log_prob_pass,
        warm_optimizer=warm_optimizer,
        warm_update=make_supervised_update(
            log_probs=make_log_probs(built.policy.graphdef, temperature=1.0, kept_logits=built.kept_logits),
            optimizer=warm_optimizer,
            mesh=mesh,
            micro_batches=amounts.warm_micro_batches(config),
        ),
        checkpoints=Checkpoints(folder / "checkpoints", keep=config.checkpoint.keep),
    )


def initial_state(run: Run) -> TrainState:
    """The state before the first step: of the warm start if there is one, else of the policy stage."""
    key = keys.run_key(run.config.run.seed)
    params, frozen = run.policy.initial(keys.fold(key, "parameters"))
    warm = run.config.warm_start.steps > 0
    optimizer = sharding.build(run.warm_optimizer.init, run.policy.sharding, params)
    state = first_state(run.config, run.objective, params=params, optimizer=optimizer, key=key, warm=warm)
    state = placed(run, state if warm else policy_stage(run, state))
    return replace(state, frozen=frozen)  # never donated, so it needs no buffers of its own


def placed(run: Run, state: TrainState) -> TrainState:
    """`state`, without its frozen part, where it lives during the run."""
    state = sharding.place(state, run.policy.sharding)
    if run.config.update.offload_reference:
        return replace(state, ref_params=sharding.to_pinned(state.ref_params))
    return state


def policy_stage(run: Run, state: TrainState) -> TrainState:
    """`state` at the start of GRPO: fresh optimizer moments, and the reference policy is the policy as it is now."""
    optimizer = sharding.build(run.optimizer.init, run.policy.sharding, state.params)
    fresh = first_state(run.config, run.objective, params=state.params, optimizer=optimizer, key=state.key)
    return replace(fresh, frozen=state.frozen)


def tokenizer_of(config: Config) -> Tokenizer:
    """The tokenizer a config names; a pretrained model brings its own."""
    options = config.tokenizer
    if options.kind == "transformers" and not options.path and isinstance(config.model, PretrainedModel):
        options = replace(options, path=config.model.path)
    return load_tokenizer(**asdict(options))


def make_advantages(
    objective: objectives.Objective, *, num_groups: int, weights: Sequence[float]
) -> Callable:
    """A jitted function (rewards, scored, group_ids, history, batch_mean) -> (advantages, history, metrics).

    `weights` are those of the reward functions. All right is a group where each function that is wanted gave 1 and
    each that is not gave 0, unless HA-DW's `reward_range` says what the best summed reward is.
    """
    low, high = sum(w for w in weights if w < 0), sum(w for w in weights if w > 0)
    if objective.history is not None:
        low, high = objective.history.reward_range
    rounding = 1e-6 * max(abs(low), abs(high))  # of a sum of weights

    def judge(rewards, scored, group_ids, history, batch_mean=None):
        advantages, history, metrics = objectives.advantages(
            objective,
            rewards=rewards,
            scored=scored,
            group_ids=group_ids,
            num_groups=num_groups,
            history=history,
            batch_mean=batch_mean,
        )
        groups = group_rows(group_ids, num_groups, None).only(scored)
        judged = diagnostics.reward_metrics(rewards, groups, reward_range=(low + rounding, high - rounding))
        return advantages, history, metrics | judged

    return jax.jit(judge)


def drop_long(split: tasks.TaskSplit, tokenizer: Tokenizer, *, limit: int) -> tasks.TaskSplit:
    """The split without prompts of more than `limit` tokens; warns of how many they are."""
    shorter, (train, held_out) = tasks.drop_long(
        split, tokens=lambda problem: len(tokenizer.encode_prompt(problem.prompt)), limit=limit
    )
    if train or held_out:
        warnings.warn(
            f"rollout.drop_long_prompts: {train} of {len(split.train)} training problems and {held_out} of "
            f"{len(split.held_out)} held-out ones have prompts of more than {limit} tokens, and are left out",
            stacklevel=2,
        )
    return shorter


def encode(problems: Sequence[Problem], tokenizer: Tokenizer, *, limit: int, what: str) -> list[Example]:
    """Token ids of every prompt.

    Raises:
        ValueError: there are no problems, or a prompt is longer than `limit` tokens.
    """
    if not problems:
        raise ValueError(
            f"data: no {what} problems; a larger data.size or another data.held_out_fraction makes some"
        )
    examples = [Example(problem, tokenizer.encode_prompt(problem.prompt)) for problem in problems]
    longest = max(examples, key=lambda example: len(example.prompt_ids))
    if len(longest.prompt_ids) > limit:
        raise ValueError(
            f"rollout.max_prompt_length: got {limit}, but a {what} prompt has {len(longest.prompt_ids)} tokens: "
            f"{shorten(longest.problem.prompt_text)!r}"
        )
    return examples


def open_folder(config: Config) -> Path:
    """Makes the run folder and writes the resolved config into it.

    Without `run.resume`, a folder that already holds a run is left alone and a number is appended to the name.
    With it, the folder must hold a run whose config differs at most in how long it lasts and what is kept.
    """
    folder = Path(config.run.folder)
    if config.run.resume:
        check_resumable(config, folder)
    else:
        number = 1
        while (folder / "config.py").exists():
            number += 1
            folder = Path(f"{config.run.folder}-{number}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run = replace(config.run, folder=str(folder), resume=False)
        resolved = replace(config, run=run, distributed=DistributedConfig())
        (folder / "config.py").write_text(experiment.to_source(resolved))
    except OSError as error:
        raise ValueError(f"run.folder: cannot write to {folder}: {error.strerror}") from error
    return folder


def saved_config(folder: Path) -> Config:
    """The resolved config of the run in `folder`."""
    path = folder / "config.py"
    if not path.exists():
        raise ValueError(f"run.resume: {folder} holds no run (no config.py in it)")
    return experiment.load(path)


def check_resumable(config: Config, folder: Path) -> None:
    """Raises unless `folder` holds a run of the same model and objective."""
    changed = {
        name: values
        for name, values in experiment.differences(saved_config(folder), config).items()
        if not name.startswith(RESUMABLE_CHANGES)
    }
    if changed:
        name, (old, new) = next(iter(changed.items()))
        raise ValueError(
            f"run.resume: {name} was {old!r} in {folder} and is {new!r} now; "
            "a resumed run keeps its config (only run.folder, train.steps, evaluation, checkpoint and mesh may change)"
        )
