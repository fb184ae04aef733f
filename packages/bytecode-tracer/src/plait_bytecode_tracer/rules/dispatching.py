"""`functools.singledispatch`: which function a generic one has for a class.

Python keeps what it found in a dictionary of weak references; here the registry is read,
whose classes and functions are guarded.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.objects.containers import hold
from plait_bytecode_tracer.rules.closures import cell_value, inner_function
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.variables import CellVariable, DictVariable, Known, Variable

_find: Any = vars(functools)["_find_impl"]


@inner_function(functools.singledispatch, "dispatch")
def dispatch(
    frame: Frame,
    cells: dict[str, CellVariable],
    args: list[Variable],
    kwargs: dict[str, Variable],
) -> Variable:
    if type_of(cell_value(frame, cells["dispatch_cache"])) is not weakref.WeakKeyDictionary:
        raise TraceBreakError("GB0002", "a generic function that keeps what it found elsewhere")
    given = [*args, *kwargs.values()]
    cls = given[0].value if len(given) == 1 and isinstance(given[0], Known) else None
    registry = hold(cell_value(frame, cells["registry"]), DictVariable)
    classes = list(registry.items)
    if not isinstance(cls, type) or not all(isinstance(each, type) for each in classes):
        raise TraceBreakError("GB0002", "a generic function of something that is not a class")
    try:
        found = cls if cls in classes else _find(cls, {each: each for each in classes})
    except RuntimeError as error:
        raise python_error(error) from error
    return registry.items[found]
