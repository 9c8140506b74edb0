"""Runs a model's program: as a script, or as functions that another process calls.

    solver.py script PROGRAM      the program is __main__; its standard input and output are its own
    solver.py serve PROGRAM       one line of JSON per call on standard input, one per result on standard
    output

Values cross as data, so nothing the program returns can act in the process that judges it.
"""

import builtins
import json
import os
import sys

MAX_ITEMS = 100_000


def encode(value):
    """Plain data as JSON-able lists [type name, content]; anything else is a TypeError."""
    if value is None or isinstance(value, (bool, int, float, str)):
        plain = next((t for t in (bool, int, float, str) if isinstance(value, t)), type(None))
        return ["plain", plain(value) if value is not None else None]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, list(value)]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(item)] for key, item in value.items()]]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [encode(item) for item in value]]
    if hasattr(value, "__iter__"):
        items = []
        for item in value:
            items.append(encode(item))
            if len(items) > MAX_ITEMS:
                raise TypeError("an iterator without end")
        return ["list", items]
    raise TypeError(f"a {type(value).__name__} is not data")


def decode(pair):
    """The value that `encode` was given."""
    kind, content = pair
    if kind == "plain":
        return content
    if kind == "complex":
        return complex(*content)
    if kind in ("bytes", "bytearray"):
        return getattr(builtins, kind)(content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(decode, content))


def load(path):
    """The program as a module's namespace."""
    builtins.exit = builtins.quit = sys.exit
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), "program.py", "exec")
    namespace = {"__name__": "__main__", "__builtins__": builtins}
    return code, namespace


def callables(namespace):
    """Names of functions, and CLASS.METHOD of the program's own classes: each call of one has an object of its own."""
    names = [name for name, value in namespace.items() if callable(value) and not name.startswith("__")]
    own = [
        name
        for name in names
        if isinstance(namespace[name], type) and namespace[name].__module__ == "__main__"
    ]
    methods = [
        f"{name}.{method}"
        for name in own
        for method, value in vars(namespace[name]).items()
        if not method.startswith("__") and (callable(value) or isinstance(value, (staticmethod, classmethod)))
    ]
    return names + methods


def serve(path):
    """Answer calls until the other side closes."""
    calls = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the program prints is no reply
    code, namespace = load(path)
    exec(code, namespace)
    print(json.dumps(callables(namespace)), file=replies, flush=True)
    for line in calls:
        try:
            name, arguments, keywords = decode(json.loads(line))
            owner, _, method = name.rpartition(".")
            function = getattr(namespace[owner](), method) if owner else namespace[name]
            reply = {"value": encode(function(*arguments, **keywords))}
        except Exception as error:
            kind = next(c.__name__ for c in type(error).__mro__ if getattr(builtins, c.__name__, None) is c)
            reply = {"error": [kind, str(error)[:500]]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    mode, program = sys.argv[1:]
    if mode == "serve":
        serve(program)
    else:
        sys.argv = ["program.py"]
        exec(*load(program))
