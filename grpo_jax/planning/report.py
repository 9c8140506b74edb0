"""A plan as text for people and as JSON for programs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from grpo_jax import units
from grpo_jax.planning.plan import Plan, ProgramPlan
from grpo_jax.planning.search import Setting
from grpo_jax.planning.targets import Target

STYLES = {"fits": "green", "does not fit": "red", "unknown": "yellow"}


def show(plan: Plan, console: Console) -> None:
    """Prints a plan."""
    mesh = " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
    parts = "1 micro-batch" if plan.micro_batches == 1 else f"{plan.micro_batches} micro-batches"
    console.print(
        f"{plan.target.name}: {plan.target.devices} devices with {units.size(plan.target.capacity)} each; mesh {mesh}; "
        f"{units.number(plan.parameters)} parameters; {parts} of {plan.rows} sequences a device"
    )
    for what in plan.left_out:
        console.print(f"[yellow]not planned[/]: {what}", highlight=False)
    for program in plan.programs:
        console.print()
        console.print(
            f"[bold]{program.name}[/]: [{STYLES[program.verdict.answer]}]{program.verdict.answer}[/] "
            f"({program.verdict.reason})",
            highlight=False,
        )
        console.print(memory_table(program))
        for line in lines(program, plan):
            console.print(line, highlight=False)
    console.print()
    console.print(
        f"[bold]verdict: [{STYLES[plan.answer]}]{plan.answer}[/][/]; {footnote(plan)}", highlight=False
    )


def memory_table(program: ProgramPlan) -> Table:
    """Memory per device: exact parts, estimates, and what the compiler said."""
    table = Table("memory per device", "", "", box=None, pad_edge=False)
    for item in program.arguments:
        table.add_row(item.name, units.size(item.bytes), "")
    for item in program.beside:
        table.add_row(item.name, units.size(item.bytes), "beside this program")
    for item in program.temporaries:
        table.add_row(item.name, units.size(item.bytes), "estimate, not all at one time")
    memory = program.compilation.memory if program.compilation else None
    if memory:
        for name in ("argument", "temp", "peak"):
            if name in memory:
                table.add_row(f"compiled: {name}", units.size(memory[name]), "")
    if program.verdict.needed is not None and program.verdict.available is not None:
        table.add_row(
            "needed", units.size(program.verdict.needed), f"of {units.size(program.verdict.available)}"
        )
    return table


def lines(program: ProgramPlan, plan: Plan) -> Iterator[str]:
    """What dominates, what to change, FLOPs, roofline, collectives and the compilation."""
    item = program.dominant
    yield f"dominated by {item.name}, {units.size(item.bytes)}" + (
        f": {item.change}" if program.verdict.answer != "fits" else ""
    )
    useful = program.cost.useful_flops
    executed = program.cost.flops * plan.devices
    yield f"{units.flops(useful)} useful, {units.flops(executed)} executed over all devices (in closed form)"
    if line := program.roofline:
        yield (
            f"roofline: {units.seconds(line.seconds)} at least, bound by {line.bound} (compute "
            f"{units.seconds(line.compute_seconds)}, memory {units.seconds(line.memory_seconds)}, network "
            f"{units.seconds(line.network_seconds)}); MFU at most {units.share(line.mfu)}; "
            f"{units.plain(line.tokens_per_second)} completion tokens/s"
        )
    compilation = program.compilation
    if compilation is None:
        return
    for item in compilation.collectives or ():
        size = units.size(item["bytes"])
        yield (
            f"  loop depth {item['depth']}: {item['count']} x {item['kind']}, {size} in all"
            + (", at least" if item["at_least"] else "")
        )
    if compilation.compile_seconds is not None:
        yield (
            f"compiled in {units.seconds(compilation.compile_seconds)} (lowered in "
            f"{units.seconds(compilation.lower_seconds)}, "
            f"{units.size(compilation.peak_rss)} of this machine's memory)"
        )


def footnote(plan: Plan) -> str:
    """How this was found."""
    versions = next(
        (p.compilation.versions for p in plan.programs if p.compilation and p.compilation.versions), {}
    )
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"compiled, not executed; level {level(plan)}; {named or 'nothing was compiled'}"


def level(plan: Plan) -> str:
    """The compiler's level in words."""
    if plan.exact:
        return "exact"
    return "quick (O1" + (", no windowed einsums)" if plan.target.chip.platform == "tpu" else ")")


def as_json(plan: Plan) -> str:
    """A plan as JSON; bytes, FLOPs and seconds as plain numbers."""
    return json.dumps(as_dict(plan), indent=2)


def as_dict(plan: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "topology": plan.target.name,
        "devices": plan.target.devices,
        "capacity_bytes": round(plan.target.capacity),
        "mesh": plan.mesh,
        "micro_batches": plan.micro_batches,
        "sequences_per_device": plan.rows,
        "parameters": plan.parameters,
        "level": level(plan),
        "answer": plan.answer,
        "executed": False,
        "not_planned": list(plan.left_out),
        "programs": {program.name: _program(program) for program in plan.programs},
    }


def _program(program: ProgramPlan) -> dict[str, Any]:
    return {
        "verdict": program.verdict._asdict() | {"headroom": program.verdict.headroom},
        "dominated_by": program.dominant._asdict() | {"change": program.dominant.change},
        "arguments": {item.name: item.bytes for item in program.arguments},
        "beside": {item.name: item.bytes for item in program.beside},
        "estimated_temporaries": {item.name: item.bytes for item in program.temporaries},
        "cost": program.cost._asdict(),
        "roofline": program.roofline._asdict() if program.roofline else None,
        "compilation": asdict(program.compilation) if program.compilation else None,
    }


def show_search(found: Sequence[tuple[Setting, Plan]], target: Target, console: Console) -> None:
    """The settings that were compiled, the best first."""
    table = Table("verdict", "step at least", "MFU at most", "needed", "setting", box=None, pad_edge=False)
    for setting, plan in found:
        program = plan.programs[0]
        line, needed = program.roofline, program.verdict.needed
        table.add_row(
            f"[{STYLES[plan.answer]}]{plan.answer}[/]",
            units.seconds(line.seconds) if line else "",
            units.share(line.mfu) if line else "",
            units.size(needed) if needed is not None else "",
            setting.flags,
        )
    console.print(table, highlight=False)
    if not found:
        console.print(
            f"no mesh of {target.name} holds the state of this config: more chips, or train adapters alone"
        )
    elif found[0][1].answer == "fits":
        console.print(f"[bold]best: {found[0][0].flags}[/]; plan it whole without --search", highlight=False)
    else:
        console.print("[bold]none of these is known to fit[/]: --compilations tries more", highlight=False)


def search_as_json(found: Sequence[tuple[Setting, Plan]]) -> str:
    """The settings that were compiled, the best first, as JSON."""
    return json.dumps([{"flags": setting.flags, **as_dict(plan)} for setting, plan in found], indent=2)
