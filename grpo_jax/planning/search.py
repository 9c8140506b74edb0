"""The fastest update that fits: micro-batch, rematerialisation and mesh, by a bounded number of compilations.

Closed form knows what a setting costs at best and what its state takes, so it orders the settings and drops the hopeless
ones; the compiler is asked about the most promising. A setting that needs more of everything than one that did not fit is
not tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from grpo_jax import amounts, validation
from grpo_jax.config import Config, MeshConfig
from grpo_jax.models.config import ModelConfig
from grpo_jax.planning import cost, sizes
from grpo_jax.planning.compiling import compile_program
from grpo_jax.planning.devices import architecture_for
from grpo_jax.planning.plan import Compile, Plan, make_plan
from grpo_jax.planning.targets import Target
from grpo_jax.training import fitting
from grpo_jax.training.shapes import Shapes, abstract_mesh, shapes_of

REMAT = ("none", "dots", "full")  # from fastest to smallest


@dataclass(frozen=True)
class Setting:
    """One way to run the update."""

    mesh: MeshConfig
    remat: str
    micro_batch: int

    def of(self, config: Config) -> Config:
        """`config` with this setting."""
        return replace(
            config,
            mesh=self.mesh,
            model=replace(config.model, remat=self.remat),
            update=replace(config.update, micro_batch=self.micro_batch),
        )

    @property
    def flags(self) -> str:
        """The setting as command-line flags."""
        mesh = " ".join(f"--mesh.{name} {getattr(self.mesh, name)}" for name in ("data", "fsdp", "tensor"))
        return f"{mesh} --model.remat {self.remat} --update.micro_batch {self.micro_batch}"

    def at_least(self, other: "Setting") -> bool:
        """Whether this needs no less memory than `other`, for sure: the same mesh, as many rows, no more recomputed."""
        return (
            self.mesh == other.mesh
            and self.micro_batch >= other.micro_batch
            and REMAT.index(self.remat) <= REMAT.index(other.remat)
        )


@dataclass(frozen=True)
class Candidate:
    """A setting with what closed form says of it."""

    setting: Setting
    seconds: float
    """A guess at an optimizer step's time, to order by: compute, memory and an estimate of the network."""
    state: int
    """Bytes per device that are certainly needed."""
    doubtful: bool
    """Whether with the temporaries that closed form knows it is already too large. These are tried last."""


def search(
    config: Config,
    target: Target,
    *,
    compilations: int = 8,
    exact: bool = False,
    time_limit: float = 600.0,
    compile_with: Compile = compile_program,
    advance: Callable[[Setting], None] = lambda setting: None,
) -> list[tuple[Setting, Plan]]:
    """Plans of the update, those that fit first and the fastest of these first.

    `advance` is told each setting before it is compiled. Other arguments are those of `make_plan`.
    """
    found: list[tuple[Setting, Plan]] = []
    for candidate in candidates(config, target):
        if len(found) == compilations:
            break
        setting = candidate.setting
        if any(plan.answer == "does not fit" and setting.at_least(tried) for tried, plan in found):
            continue
        advance(setting)
        plan = make_plan(
            setting.of(config),
            target,
            exact=exact,
            names=("update",),
            time_limit=time_limit,
            compile_with=compile_with,
        )
        found.append((setting, plan))
    return sorted(found, key=lambda pair: (_rank(pair[1]), step_seconds(pair[1])))


def step_seconds(plan: Plan) -> float:
    """The roofline of the update, infinite where it was not compiled."""
    line = plan.programs[0].roofline
    return line.seconds if line else float("inf")


def _rank(plan: Plan) -> int:
    return ("fits", "unknown", "does not fit").index(plan.answer)


def candidates(config: Config, target: Target) -> list[Candidate]:
    """Settings whose state fits, the fastest first, the doubtful ones last."""
    architecture = architecture_for(config)
    devices = target.devices - config.rollout.devices
    found = []
    for setting in settings(config, target, architecture):
        changed = setting.of(config)
        mesh = abstract_mesh(changed, devices=devices)
        shapes = shapes_of(
            changed,
            replace(architecture, remat=setting.remat),
            mesh=mesh,
            platform=target.chip.platform,
        )
        update = shapes.programs["update"]
        state = sum(item.bytes for item in sizes.items({**update.arguments, **update.beside}))
        if state > target.capacity:
            continue
        costed = cost.costs(changed, shapes, mesh)["update"]
        sent = network_estimate(changed, shapes, setting.mesh)
        line = cost.roofline(costed._replace(network_bytes=sent), target, devices=mesh.size)
        total = line.compute_seconds + line.memory_seconds + line.network_seconds
        known = state + sum(item.bytes for item in sizes.temporaries(changed, shapes, mesh))
        found.append(Candidate(setting, total, state, doubtful=known > target.capacity))
    return sorted(found, key=lambda candidate: (candidate.doubtful, candidate.seconds))


def settings(config: Config, target: Target, architecture: ModelConfig) -> Iterator[Setting]:
    """Every mesh of all the trainer's devices and every size of a micro-batch that go with the config."""
    for mesh in meshes(target.devices - config.rollout.devices):
        shards = mesh.data * mesh.fsdp
        for size in fitting.candidates(replace(config, mesh=mesh), shards=shards):
            for remat in REMAT:
                setting = Setting(mesh, remat, size)
                try:
                    validation.validate(setting.of(config), devices=target.devices, architecture=architecture)
                except ValueError:
                    continue  # heads or widths that the mesh does not divide, more shards than sequences
                yield setting


def meshes(devices: int) -> Sequence[MeshConfig]:
    """Ways to write `devices` as data x fsdp x tensor."""
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    return [
        MeshConfig(data=devices // (fsdp * tensor), fsdp=fsdp, tensor=tensor)
        for fsdp in divisors
        for tensor in divisors
        if devices % (fsdp * tensor) == 0
    ]


def network_estimate(config: Config, shapes: Shapes, mesh: MeshConfig) -> float:
    """Bytes a device sends in an optimizer step: weights gathered and gradients scattered over fsdp for each micro-batch,
    activations summed over tensor in each layer, gradients summed over data once."""
    model, micro = shapes.architecture, shapes.built.micro_batches
    copy = cost.parameters(shapes) / mesh.tensor
    width = 2 if model.dtype == "bfloat16" else 4
    passes = 2 if model.remat == "none" else 3
    gathered = micro * copy * (passes * width + width) * (mesh.fsdp - 1) / mesh.fsdp
    rows = amounts.rows_per_device(config, shards=mesh.data * mesh.fsdp)
    tokens = micro * rows * (config.rollout.max_prompt_length + config.rollout.max_completion_length)
    # Two sums per layer and pass; the backward pass has as many as the forward pass.
    summed = 2 * passes * model.num_layers * tokens * model.width * width
    summed *= 2 * (mesh.tensor - 1) / mesh.tensor
    reduced = 2 * 4 * copy / mesh.fsdp * (mesh.data - 1) / mesh.data
    return gathered + summed + reduced
