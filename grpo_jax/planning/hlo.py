"""Collectives of a compiled program, read from its HLO text: kind, bytes, and how often they run.

A loop's body stands once in the text however often it runs. So the text is walked from its entry computation through
every call, and what lies inside `while` loops is counted as often as the loops' conditions say.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations)=\{?%?([\w.\-]+(?:, %?[\w.\-]+)*)\}?"
)
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind in one place of the loop nest."""

    kind: str
    depth: int
    """Loops around it."""
    bytes: int
    """What one device holds of it, whole: the result, or a reduce-scatter's operand. All of `count` runs together."""
    traffic: float
    """Bytes a device sends for all of them, round a ring."""
    count: int
    """How often it runs."""
    at_least: bool
    """Whether a loop around it runs a number of times that the text does not say; it is then taken to run once."""


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    rest: str
    """Operands and attributes."""


def collectives(text: str) -> list[Collective]:
    """Collectives of the program, those of one kind and depth together, outermost first."""
    computations, entry = parse(text)
    found: dict[tuple[str, int], list[Collective]] = {}
    for item in _walk(computations, entry, depth=0, times=1, at_least=False):
        found.setdefault((item.kind, item.depth), []).append(item)
    joined = [
        Collective(
            kind,
            depth,
            sum(item.bytes for item in items),
            sum(item.traffic for item in items),
            sum(item.count for item in items),
            any(item.at_least for item in items),
        )
        for (kind, depth), items in found.items()
    ]
    return sorted(joined, key=lambda item: (item.depth, KINDS.index(item.kind)))


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Instructions of every computation by its name, and the name of the entry computation.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if opening := _COMPUTATION.match(line):
            current = computations.setdefault(opening[2], [])
            entry = opening[2] if opening[1] else entry
        elif current is not None and (found := _INSTRUCTION.match(line)):
            current.append(Instruction(*found.groups()))
    if not entry:
        raise ValueError("this is no HLO text: it has no ENTRY computation")
    return computations, entry


def size_of(shape: str) -> int:
    """Bytes of a shape as HLO writes it, tuples summed: "(f32[2,3]{1,0}, bf16[4])" is 32."""
    total = 0
    for dtype, dims in _SHAPE.findall(shape):
        bits = _BITS[dtype] if dtype in _BITS else int(re.search(r"\d+", dtype)[0])
        count = 1
        for size in filter(None, dims.split(",")):
            count *= int(size)
        total += count * bits // 8
    return total


def _walk(
    computations: Mapping[str, list[Instruction]], name: str, *, depth: int, times: int, at_least: bool
) -> Iterator[Collective]:
    for instruction in computations.get(name, ()):
        kind = _kind(instruction)
        if kind:
            yield _collective(kind, instruction, computations, depth=depth, times=times, at_least=at_least)
            continue
        if instruction.opcode == "while":
            body = re.search(r"body=%?([\w.\-]+)", instruction.rest)[1]
            trips = _trips(instruction, computations)
            inside = {
                "depth": depth + 1,
                "times": times * (trips or 1),
                "at_least": at_least or trips is None,
            }
            yield from _walk(computations, body, **inside)
            continue
        for called in _called(instruction):
            yield from _walk(computations, called, depth=depth, times=times, at_least=at_least)


def _called(instruction: Instruction) -> list[str]:
    return [name for group in _CALLED.findall(instruction.rest) for name in re.findall(r"[\w.\-]+", group)]


def _kind(instruction: Instruction) -> str:
    """The kind of collective an instruction is, or "". TPU compilers hide reduce-scatters in fusions that call them so."""
    opcode = instruction.opcode.removesuffix("-start")
    if opcode in KINDS:
        return opcode
    if instruction.opcode == "fusion" and re.search(r"calls=%?all-reduce-scatter", instruction.rest):
        return "reduce-scatter"
    return ""


def _collective(kind: str, instruction: Instruction, computations, *, depth, times, at_least) -> Collective:
    size = size_of(instruction.shape)
    if instruction.opcode.endswith("-start") and kind in ("all-gather", "collective-permute"):
        size = _last_of_pair(instruction.shape)  # (operand, result, …)
    devices = _group_size(instruction, computations)
    if kind == "reduce-scatter":
        size *= devices
    share = (devices - 1) / devices
    factor = {"all-reduce": 2 * share, "collective-permute": 1.0}.get(kind, share)
    return Collective(kind, depth, size * times, size * factor * times, times, at_least)


def _last_of_pair(shape: str) -> int:
    parts = [size_of(f"{dtype}[{dims}]") for dtype, dims in _SHAPE.findall(shape)]
    return max(parts, default=0)


def _group_size(instruction: Instruction, computations: Mapping[str, list[Instruction]]) -> int:
    """Devices that take part together, in the three ways that HLO writes it."""
    texts = [instruction.rest]
    for name in _called(instruction):  # of a fused reduce-scatter, the groups stand inside
        texts += [inner.rest for inner in computations.get(name, ())]
    for text in texts:
        if found := re.search(r"replica_groups=\[\d+,(\d+)\]", text):  # [groups,size]<=[devices]
            return int(found[1])
        if found := re.search(r"replica_groups=\{\{([\d,]+)\}", text):  # {{0,1},{2,3}}
            return found[1].count(",") + 1
        if found := re.search(
            r"replica_groups=mesh\[([^\]]*)\].*? \{([^}]*)\}", text
        ):  # mesh['a'=2,'b'=4] {'b'}
            axes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
            return math.prod(int(axes[name]) for name in re.findall(r"'(\w+)'", found[2]))
    return 2


def _trips(loop: Instruction, computations: Mapping[str, list[Instruction]]) -> int | None:
    """How often a loop runs: the compiler's own note, or the constant that its counter, which begins at 0, stays below."""
    if found := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(found[1])
    condition = computations.get(re.search(r"condition=%?([\w.\-]+)", loop.rest)[1], [])
    constants = {i.name: i.rest for i in condition if i.opcode == "constant" and i.shape.startswith("s32[]")}
    tests = [i for i in condition if i.opcode == "compare" and "direction=LT" in i.rest]
    if len(condition) and len(tests) == 1 and len(constants) == 1:
        ((name, rest),) = constants.items()
        number = re.match(r"(\d+)\)", rest)
        operands = tests[0].rest.split(")")[0]
        if number and re.search(rf"%?{re.escape(name)}$", operands):
            return int(number[1])
    return None
