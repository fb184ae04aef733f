"""Imports in traced code: of modules that are loaded already.

A module's code runs when it is first imported. Such an import breaks the graph, so that it
happens where the program has it; unless it is of a library that does nothing else then.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind
from plait_bytecode_tracer.values.variables import Known, Variable

_IMPORT = builtins.__import__
_SILENT = frozenset({*sys.stdlib_module_names, "torch"}) - {"this", "antigravity"}
"""Packages of which nobody can tell when they are imported."""


def imported(frame: Frame, name: str, names: Sequence[str] | None, level: int) -> Variable:
    """`import name`, or `from name import names`, with dots for the level."""
    if builtins.__import__ is not _IMPORT:
        raise TraceBreakError("GB0002", "an import by a function of the program's own")
    space = frame.function.globals
    try:
        whole = name if level == 0 else _absolute(name, space, level)
        if whole not in sys.modules and whole.partition(".")[0] not in _SILENT:
            _guard_absent(frame, whole)
            _require_absent(whole)
        module = sys.modules.get(whole)
        for each in names or ():
            if hasattr(module, "__path__") and each != "*" and each not in vars(module):
                _require_loaded(frame, f"{whole}.{each}")
        found = _IMPORT(name, space, None, names or (), level)
    except ImportError as error:
        raise python_error(error) from error
    _guard_module(frame, whole)
    return _known(frame, found)


def _absolute(name: str, space: dict[str, Any], level: int) -> str:
    package = space.get("__package__") or ""
    if not package and "__spec__" in space and space["__spec__"] is not None:
        package = space["__spec__"].parent
    if not package:
        raise TraceBreakError("GB0002", "a relative import outside of a package")
    return importlib.util.resolve_name("." * level + name, package)


def _require_absent(name: str) -> None:
    """Break unless there is no such module."""
    top = name.partition(".")[0]
    if top in sys.modules or importlib.util.find_spec(top) is not None:
        raise TraceBreakError("GB0002", f"the first import of {name}")


def _require_loaded(frame: Frame, name: str) -> None:
    """Break where a submodule is there that has not been loaded."""
    if name in sys.modules or name.partition(".")[0] in _SILENT:
        return
    _guard_absent(frame, name)
    if importlib.util.find_spec(name) is not None:
        raise TraceBreakError("GB0002", f"the first import of {name}")


def _guard_absent(frame: Frame, name: str) -> None:
    state = frame.state
    modules = state.constants.source(sys.modules, "sys.modules")
    for absent in (name.partition(".")[0], name):
        if absent not in sys.modules:
            state.require(modules, Kind.LACKS, absent, f"{absent} is not imported")


def _guard_module(frame: Frame, name: str) -> None:
    state = frame.state
    modules = state.constants.source(sys.modules, "sys.modules")
    parts = name.split(".")
    for count in {1, len(parts)}:
        part = ".".join(parts[:count])
        entry = modules.element(part, repr(part))
        state.require(entry, Kind.IDENTITY, sys.modules[part], f"sys.modules[{part!r}]")


def _known(frame: Frame, module: types.ModuleType) -> Variable:
    if module.__name__.split(".")[0] == "torch":
        return constant(module)
    return Known(module, frame.state.constants.source(module, module.__name__))
