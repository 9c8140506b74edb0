"""Runs a problem's own tests against functions that live in another process.

    tester.py SPEC      SPEC is JSON: `prelude`, `tests` (a list of sources), `entry_point`

Calls go out on standard output and results come in on standard input, as `solver.py serve` speaks. The
outcome of each test, a list of true and false, is the last line on standard error. Only the tests run here,
so nothing a solution does can forge that line, replace `assert`, or make its results equal to everything.
"""

import ast
import builtins
import json
import os
import sys

MAX_REPLY = 16_000_000


def main(spec_path, solver):
    """Run every test in a namespace of its own."""
    with open(spec_path, encoding="utf-8") as file:
        spec = json.load(file)
    replies = os.fdopen(os.dup(0), encoding="utf-8")
    calls = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def proxy(name):
        def call(*arguments, **keywords):
            message = solver.encode((name, list(arguments), keywords))
            print(json.dumps(message), file=calls, flush=True)
            reply = json.loads(replies.readline(MAX_REPLY) or "{}")
            if "value" in reply:
                return solver.decode(reply["value"])
            kind, text = reply.get("error", ["RuntimeError", "the solution ended"])
            error = getattr(builtins, kind, RuntimeError)
            # One that ends a loop would end the test's: all(map(f, …)) of nothing is true.
            known = (
                isinstance(error, type)
                and issubclass(error, Exception)
                and not issubclass(error, StopIteration)
            )
            raise (error if known else RuntimeError)(text)

        call.__name__ = name
        return call

    def stand_in(owner, methods):
        """A class whose objects have these methods of the solution's; they keep nothing between calls."""

        def bound(name):
            call = proxy(f"{owner}.{name}")
            return lambda self, *arguments, **keywords: call(*arguments, **keywords)

        return type(owner, (), {name: bound(name) for name in methods})

    names = [name for name in json.loads(replies.readline(MAX_REPLY) or "[]") if isinstance(name, str)]
    # Python itself calls methods like __eq__: with one of its own a solution's object would be equal to everything.
    names = [n for n in names if all(p.isidentifier() and not p.startswith("__") for p in n.split(".", 1))]
    methods = {}
    for owner, _, method in (name.partition(".") for name in names):
        if method:
            methods.setdefault(owner, []).append(method)
    wanted = spec["entry_point"].partition(".")[0]
    outcomes = []
    for source in spec["tests"]:
        namespace = {"__name__": "tests"}
        try:
            exec(compile(spec["prelude"], "prelude.py", "exec"), namespace)
            known = set(namespace)
            theirs = {name.partition(".")[0] for name in names}
            free = theirs - known - unasked(source, theirs, wanted)
            for name in theirs:
                if name in free or name == wanted:
                    namespace[name] = stand_in(name, methods[name]) if name in methods else proxy(name)
            exec(compile(source, "tests.py", "exec"), namespace)
            outcomes.append(True)
        except BaseException:
            outcomes.append(False)
    os.write(2, ("\n" + json.dumps(outcomes)).encode())


def unasked(source, theirs, wanted):
    """Builtins that a test means Python's own by, whatever the solution calls by these names.

    A builtin is the solution's if it is what the problem asks for; where that is not said, if the test uses nothing
    else of the solution's.
    """
    shared = {name for name in theirs if hasattr(builtins, name)}
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)} & theirs
    return set() if not wanted and len(used) == 1 else shared


if __name__ == "__main__":
    import importlib.util

    spec = importlib.util.spec_from_file_location("solver", "solver.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main(sys.argv[1], module)
