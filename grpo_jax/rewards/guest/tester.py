"""Runs a problem's own tests against functions that live in another process.

    tester.py SPEC      SPEC is JSON: `prelude`, `tests` (a list of sources), `entry_point`

Calls go out on standard output and results come in on standard input, as `solver.py serve` speaks. The
outcome of each test, a list of true and false, is the last line on standard error. Only the tests run here,
so nothing a solution does can forge that line, replace `assert`, or make its results equal to everything.
"""

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
            raise (error if isinstance(error, type) and issubclass(error, Exception) else RuntimeError)(text)

        call.__name__ = name
        return call

    def stand_in(owner, methods):
        """A class whose objects have these methods of the solution's; they keep nothing between calls."""

        def bound(name):
            call = proxy(f"{owner}.{name}")
            return lambda self, *arguments, **keywords: call(*arguments, **keywords)

        return type(owner, (), {name: bound(name) for name in methods})

    names = [name for name in json.loads(replies.readline(MAX_REPLY) or "[]") if isinstance(name, str)]
    names = [name for name in names if all(part.isidentifier() for part in name.split(".", 1))]
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
            for name in {name.partition(".")[0] for name in names}:
                if name not in known or name == wanted:
                    namespace[name] = stand_in(name, methods[name]) if name in methods else proxy(name)
            exec(compile(source, "tests.py", "exec"), namespace)
            outcomes.append(True)
        except BaseException:
            outcomes.append(False)
    os.write(2, ("\n" + json.dumps(outcomes)).encode())


if __name__ == "__main__":
    import importlib.util

    spec = importlib.util.spec_from_file_location("solver", "solver.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main(sys.argv[1], module)
