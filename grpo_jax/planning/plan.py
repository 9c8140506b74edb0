"""A plan: every program of a config compiled for a target, with its verdict, memory and cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_jax import amounts, units, validation
from grpo_jax.config import Config
from grpo_jax.planning import cost, sizes, verdict
from grpo_jax.planning.compiling import Compilation, compile_program
from grpo_jax.planning.devices import architecture_for
from grpo_jax.planning.sizes import Item
from grpo_jax.planning.targets import Target
from grpo_jax.planning.verdict import Verdict
from grpo_jax.training import sharding
from grpo_jax.training.shapes import NAMES, abstract_mesh, shapes_of

Compile = Callable[..., Compilation]
"""`compile_program`, or what a test puts in its place."""


@dataclass(frozen=True)
class ProgramPlan:
    """One program. Bytes are per device."""

    name: str
    verdict: Verdict
    compilation: Compilation | None
    """None where closed form already says that the program cannot fit."""
    arguments: Sequence[Item]
    beside: Sequence[Item]
    """State that lies there while the program runs, and that it does not touch."""
    temporaries: Sequence[Item]
    """Estimates of the largest ones; of the update alone."""
    cost: cost.Cost
    roofline: cost.Roofline | None
    """None where the program was not compiled, or its collectives were not read."""

    @property
    def dominant(self) -> Item:
        """What takes most of the memory, as far as closed form knows: of the temporaries, where these alone are too much."""
        if self.temporaries and verdict.TEMPORARIES in self.verdict.reason:
            return sizes.largest(self.temporaries)
        return sizes.largest([*self.arguments, *self.beside, *self.temporaries])


@dataclass(frozen=True)
class Plan:
    """Every program of a config on a target."""

    target: Target
    mesh: dict[str, int]
    micro_batches: int
    rows: int
    """Sequences that a device has in one micro-batch."""
    parameters: int
    exact: bool
    programs: Sequence[ProgramPlan]
    left_out: Sequence[str] = ()
    """What the run compiles besides, and the verdict says nothing of."""

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.mesh.values())

    @property
    def answer(self) -> verdict.Answer:
        """Fits only if every program fits."""
        return verdict.overall([program.verdict for program in self.programs])


def make_plan(
    config: Config,
    target: Target,
    *,
    exact: bool = False,
    names: Sequence[str] = NAMES,
    time_limit: float = 600.0,
    compile_with: Compile = compile_program,
    starting: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Compiles the programs of a config for a target, one after another.

    Args:
        config: the experiment.
        target: the chips.
        exact: compile with the flags that training will use, in place of the quick level.
        names: which programs, of `shapes.NAMES`.
        time_limit: seconds for each program, lowering included.
        compile_with: what compiles.
        starting: told each program's name before it is compiled.

    Raises:
        ValueError: the config is wrong for the target; the message names the field.
    """
    if config.update.micro_batch == amounts.AUTO:
        raise ValueError(
            "update.micro_batch: got 'auto', expected a number: a plan is for one (--search compares)"
        )
    architecture = architecture_for(config)
    validation.validate(config, devices=target.devices, architecture=architecture)
    mesh = abstract_mesh(config, devices=target.devices - config.rollout.devices)
    shapes = shapes_of(config, architecture, mesh=mesh, platform=target.chip.platform)
    costs = cost.costs(config, shapes, mesh)
    found = []
    for name in names:
        if name not in shapes.programs:  # a sampler with devices of its own
            continue
        program = shapes.programs[name]
        arguments, beside = sizes.items(program.arguments), sizes.items(program.beside)
        resident = sum(item.bytes for item in beside)
        compilation = None
        decided = _too_large(sum(item.bytes for item in arguments) + resident, target)
        if decided is None:
            starting(name)
            compilation = compile_with(config, target, name, exact=exact, time_limit=time_limit)
            decided = verdict.judge(compilation, target, resident=resident)
        bytes_sent = cost.traffic(compilation.collectives) if compilation else None
        costed = costs[name]._replace(network_bytes=bytes_sent)
        found.append(
            ProgramPlan(
                name=name,
                verdict=decided,
                compilation=compilation,
                arguments=arguments,
                beside=beside,
                temporaries=sizes.temporaries(config, shapes, mesh) if name == "update" else (),
                cost=costed,
                roofline=None if bytes_sent is None else cost.roofline(costed, target, devices=mesh.size),
            )
        )
    return Plan(
        target=target,
        mesh=dict(mesh.shape),
        micro_batches=shapes.built.micro_batches,
        rows=amounts.rows_per_device(config, shards=sharding.row_shards(mesh)),
        parameters=cost.parameters(shapes),
        exact=exact,
        programs=found,
        left_out=left_out(config),
    )


def left_out(config: Config) -> list[str]:
    """The programs of a config that no plan has, and why."""
    found, warm = [], config.warm_start
    if warm.steps:
        found.append(
            f"the warm start's update, {warm.batch_size} sequences in {amounts.warm_micro_batches(config)} micro-batches, "
            "whose length the reference answers decide (a smaller update.micro_batch needs less)"
        )
    if config.rollout.devices:
        found.append(f"the sampler on its own {config.rollout.devices} devices (rollout.devices)")
    return found


def _too_large(needed: int, target: Target) -> Verdict | None:
    """The verdict where arguments and state alone exceed the memory; there is nothing to compile then."""
    available = round(target.capacity * (verdict.GPU_SHARE if target.chip.platform == "cuda" else 1))
    if needed <= available:
        return None
    reason = f"state alone is {units.size(needed)}, {units.size(needed - available)} too much; not compiled"
    return Verdict("does not fit", reason, needed, available)
