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

    Raises ValueError for a name that a module of the package has too: who imports that module
    puts it in the place of the export, before or after somebody has asked for it.
    """
    for module, names in places.items():
        shared = next((name for name in names if f"{package}.{name}" in places), None)
        if shared is not None:
            raise ValueError(f"{package}.{shared} is a module, and exported by {module}")
    modules = {name: module for module, names in places.items() for name in names}

    def __getattr__(name: str) -> object:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = import_module(module)
        value: object = getattr(found, name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
