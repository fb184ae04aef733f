"""Python that makes the bound methods of the trace."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.values.variables import BoundVariable, Known

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder

_METHODS_IN_C = types.WrapperDescriptorType | types.MethodDescriptorType


def bound(function: Any, owner: Any) -> types.MethodType:
    """A method that binds a function to an object; only class methods bind what is no function."""
    if callable(function):
        return types.MethodType(function, owner)
    descriptor: Any = classmethod(function)
    made: types.MethodType = descriptor.__get__(None, owner)
    return made


def new_bound_method(rebuilder: Rebuilder, variable: BoundVariable) -> str:
    """The name of a method that binds its function, of Python's or C's, to its object."""
    function, owner = variable.function, variable.self
    if isinstance(function, Known) and isinstance(function.value, _METHODS_IN_C):
        receiver = rebuilder.value(owner)  # methods in C need its type too: CPython reads it
        return rebuilder.assign(
            f"{rebuilder.value(function)}.__get__({receiver}, type({receiver}))"
        )
    make = rebuilder.state.constants.name(bound)
    return rebuilder.assign(f"{make}({rebuilder.value(function)}, {rebuilder.value(owner)})")
