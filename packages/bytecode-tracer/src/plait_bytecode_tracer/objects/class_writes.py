"""Writes to data that a class from outside holds, as to a counter of its instances."""

from __future__ import annotations

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.values.variables import BoundVariable, FunctionVariable, Known, Variable

_IMMUTABLE = 1 << 8
"""The flag of classes whose attributes cannot be set."""


def write_class(state: TraceState, cls: type, name: str, value: Variable) -> None:
    """`cls.name = value`, where the class or a base holds plain data under the name already.

    Raises TraceBreakError for what changes how objects behave: methods, descriptors, names
    that Python itself looks for, and names that are new.
    """
    special = name.startswith("__") and name.endswith("__")
    fixed = cls.__flags__ & _IMMUTABLE or type(cls).__setattr__ is not type.__setattr__
    if special or fixed or not holds_data(cls, name) or _may_bind(value):
        raise TraceBreakError("GB0007", f"a write to {name!r} of the class {cls.__name__}")
    check = f"{state.constants.name(holds_data)}({{}}, {name!r})"
    source = state.constants.source(cls, cls.__qualname__)
    state.guard(source, check, f"{cls.__qualname__} holds plain data as {name}")
    state.world.attributes.setdefault(id(cls), {})[name] = value
    state.world.owners[id(cls)] = Known(cls)
    state.world.written_classes.add(id(cls))


def holds_data(cls: type, name: str) -> bool:
    """Whether a class or a base has something under a name that is read and set as it is."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return not _binds(type(base.__dict__[name])) and not hasattr(type(cls), name)
    return False


def _may_bind(value: Variable) -> bool:
    """Whether an attribute of a class with this value is another thing when it is read."""
    if isinstance(value, FunctionVariable | BoundVariable):
        return True
    cls = type(value.value) if isinstance(value, Known) else getattr(value, "cls", type(None))
    return _binds(cls)


def _binds(cls: type) -> bool:
    return any(hasattr(cls, name) for name in ("__get__", "__set__", "__delete__"))


def written_to_class(state: TraceState, cls: type, name: str) -> Variable | None:
    """What the trace has set under a name on a class or the base that defines it; else None."""
    if not state.world.written_classes:
        return None
    if name in ("__dict__", "__static_attributes__"):
        _refuse(state, cls)
    for base in cls.__mro__:
        if id(base) in state.world.written_classes:
            found = state.world.attributes[id(base)].get(name)
            if found is not None:
                return found
        if name in base.__dict__:
            return None
    return None


def _refuse(state: TraceState, cls: type) -> None:
    if any(id(base) in state.world.written_classes for base in cls.__mro__):
        raise TraceBreakError("GB0007", f"all attributes of {cls.__name__} after a write to one")
