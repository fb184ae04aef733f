"""Keeping torch's Python meta kernels from loading torch's compiler.

The elementwise kernels that fake tensors run are wrapped so that torch's compiler does not trace
into them; on its first call the wrapper imports ``torch._dynamo`` to build that version, which
takes most of a second. The wrapper looks for the built version on the function first. Marking a
function as its own answer makes the wrapper call it directly, which is the same computation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import FunctionType

_MARK = "__dynamo_disable"
_WRAPPER = "torch._compile"
_MODULES = (
    "torch._decomp.decompositions",
    "torch._meta_registrations",
    "torch._prims",
    "torch._refs",
    "torch._refs.fft",
    "torch._refs.linalg",
    "torch._refs.nn.functional",
    "torch._refs.special",
)


@cache
def call_meta_kernels_directly() -> int:
    """Mark the kernels, once in a process; returns how many there were.

    Does nothing where torch's compiler is loaded already: there is nothing to save.
    """
    if "torch._dynamo" in sys.modules:
        return 0
    marked = 0
    seen: set[int] = set()
    waiting = list(_kernels())
    while waiting:
        layer = waiting.pop()
        if not isinstance(layer, FunctionType) or id(layer) in seen:
            continue
        seen.add(id(layer))
        inner = list(_captured(layer))
        if layer.__globals__.get("__name__") == _WRAPPER:
            for function in inner:
                if not hasattr(function, _MARK):
                    setattr(function, _MARK, function)
                    marked += 1
        waiting += inner
    return marked


def _captured(function: FunctionType) -> Iterator[FunctionType]:
    """The functions that a wrapper closes over."""
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
        if isinstance(content, FunctionType):
            yield content


def _kernels() -> Iterator[object]:
    from torch._decomp import global_decomposition_table

    for table in global_decomposition_table.values():
        yield from table.values()
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None:
            yield from vars(module).values()
