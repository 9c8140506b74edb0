"""From a name in a config to a function, in one place: a built-in's name, or your own "module:attribute"."""

import importlib
import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any


def resolve(name: str, builtins: Mapping[str, Any], what: str) -> Any:
    """The built-in called `name`, or the attribute a "module:attribute" path leads to.

    Args:
        name: what the config says.
        builtins: the built-ins by name.
        what: what is being looked up, for the error ("reward", "aggregation", …).
    """
    if name in builtins:
        return builtins[name]
    if ":" in name:
        return _import(name, what)
    close = get_close_matches(name, builtins, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"{what}: {name!r} is not known.{hint} Expected one of {', '.join(sorted(builtins))}, "
        'or "module:attribute" of your own.'
    )


def _import(path: str, what: str) -> Any:
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ValueError(f'{what}: {path!r} is not of the form "module:attribute".')
    # A console script does not search the folder it is started in. Appended, so that it shadows no package.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError:
        public = ", ".join(name for name in vars(found) if not name.startswith("_"))
        raise ValueError(f"{what}: {path!r}: {module_name} has no {attribute!r}; it has {public}.") from None
    except Exception as error:
        raise ValueError(f"{what}: cannot import {path!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"{what}: {path!r} is a {type(found).__name__}, expected something callable.")
    return found
