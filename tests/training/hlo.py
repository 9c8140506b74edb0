"""Reading a compiled program's text: which reductions it holds, and which of them run inside a loop."""

import re

NAME = r"%?([\w.\-]+)"


def all_reduces(text: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes that are all-reduced (outside loops, inside loops), each operand on its own."""
    bodies = computations(text)
    inside = reached(bodies, set(re.findall(rf"(?:body|condition)={NAME}", text)))
    outer, inner = [], []
    for name, lines in bodies.items():
        for line in lines:
            if found := re.search(r"= (.+?) all-reduce(?:-start)?\(", line):
                shapes = [
                    tuple(map(int, s.split(","))) if s else ()
                    for s in re.findall(r"\w+\[([\d,]*)\]", found[1])
                ]
                (inner if name in inside else outer).extend(shapes)
    return outer, inner


def computations(text: str) -> dict[str, list[str]]:
    """Lines of every computation of a module."""
    found, current = {}, None
    for line in text.splitlines():
        if start := re.match(rf"(?:ENTRY )?{NAME} \(.*\) -> .* \{{$", line):
            current = found.setdefault(start[1], [])
        elif current is not None:
            current.append(line)
    return found


def reached(bodies: dict[str, list[str]], start: set[str]) -> set[str]:
    """Computations called from `start`, directly or not."""
    seen, waiting = set(), set(start)
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for line in bodies.get(name, ()):
            called = re.findall(rf"(?:calls|to_apply|body|condition)={NAME}", line)
            for group in re.findall(r"(?:called_computations|branch_computations)=\{([^}]*)\}", line):
                called += re.findall(NAME, group)
            waiting |= set(called) - seen
    return seen
