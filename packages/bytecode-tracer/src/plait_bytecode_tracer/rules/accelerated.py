"""C functions of the standard library that have a Python twin beside them, which is followed.

Modules such as `heapq` are written in Python, and replace some functions by C ones at their
end. The source is read once more without that end.
"""

from __future__ import annotations

import bisect
import builtins
import functools
import heapq
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.rules.registry import Builtin, builtin
from plait_bytecode_tracer.values.variables import SequenceVariable, Variable


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    """Import nothing that C defines, of what a module prefers to its own functions."""
    if name in ("_heapq", "_bisect"):
        raise ImportError(name)
    return builtins.__import__(name, *args, **kwargs)


@functools.cache
def in_python(module: str) -> dict[str, Any]:
    """The names of a module of the standard library, as its Python source alone defines them."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise TraceBreakError("GB0002", f"{module}, which has no source here")
    text = Path(spec.origin).read_text(encoding="utf-8")
    space: dict[str, Any] = {
        "__name__": module,
        "__builtins__": {**vars(builtins), "__import__": _import},
        "IS_TWIN": True,  # what runs in these frames is C code where a break resumes
    }
    exec(compile(text, spec.origin, "exec"), space)
    return space


def _followed(module: ModuleType, name: str, check: Callable[[Sequence[Variable]], bool]) -> None:
    """Register the twin of a C function for arguments that it takes as the C function does."""

    def rule(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
        if not check(args):
            raise TraceBreakError("GB0002", f"{name}() of other than a list")
        return frame.call(constant(in_python(module.__name__)[name]), list(args), kwargs)

    made: Builtin = rule
    builtin(getattr(module, name))(made)


def _is_list(args: Sequence[Variable]) -> bool:
    """Whether the first argument is a list itself: C code reads it past a class's methods."""
    return bool(args) and isinstance(args[0], SequenceVariable) and args[0].kind is list


for _name in (
    *("heappush", "heappop", "heapify", "heapreplace", "heappushpop"),
    *("_heappop_max", "_heapify_max", "_heapreplace_max"),
):
    _followed(heapq, _name, _is_list)
for _name in ("bisect_left", "bisect_right", "insort_left", "insort_right"):
    _followed(bisect, _name, bool)
