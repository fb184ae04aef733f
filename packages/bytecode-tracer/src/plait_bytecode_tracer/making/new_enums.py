"""Calls of enumerations: a look-up of a member, or a new enumeration."""

from __future__ import annotations

import enum

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.making.building import make
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.statics import guard_class, is_python, static_attribute
from plait_bytecode_tracer.values.variables import Known, Variable

_CALLED = (
    *("__new__", "__init__", "__init_subclass__", "__set_name__", "_generate_next_value_"),
    *("_missing_", "__eq__", "__hash__"),
)
"""What the metaclass calls of the classes that a new enumeration inherits from."""


def call_enum(
    frame: Frame, function: Known, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """`cls(*args, **kwargs)`; None where code of the user's takes part, which is traced."""
    cls: enum.EnumMeta = function.value
    if issubclass(cls, type) or static_attribute(type(cls), "__call__") is not _CALL:
        return None
    if len(args) + len(kwargs) == 1 and _is_of_library(cls, "_missing_"):
        guard_class(frame, cls, "_missing_")
        return fold(cls, args, kwargs)
    known = type(cls) is enum.EnumMeta and all(_is_of_library(cls, name) for name in _CALLED)
    named = set(kwargs) - {"names"}
    if not known or not named <= _OPTIONS or len(args) + len(kwargs) - len(named) != 2:
        return None
    if "module" not in kwargs:  # else it looks for its caller's
        kwargs = {**kwargs, "module": constant(frame.function.globals.get("__name__"))}
    return make(frame, cls, args, kwargs)


_CALL = static_attribute(enum.EnumMeta, "__call__")
_OPTIONS = frozenset({"module", "qualname", "start", "boundary"})


def _is_of_library(cls: type, name: str) -> bool:
    """Whether what a class has under a name is no Python of the user's."""
    found = static_attribute(cls, name)
    function = getattr(found, "__func__", found)
    return not is_python(function) or function.__module__ == "enum"
