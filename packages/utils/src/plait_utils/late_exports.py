"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def late_exports(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """A package's `__getattr__`: what few programs use costs the others no time and memory.

    Args:
        package: its name.
        places: modules, each with the names that it exports.
    """
    modules = {name: module for module, names in places.items() for name in names}

    def __getattr__(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(module)
        # All of them: an import has put the module itself in place of an export of its own name.
        for each in places[module]:
            if hasattr(found, each):
                setattr(sys.modules[package], each, getattr(found, each))
        value: object = getattr(found, name)
        return value

    return __getattr__
