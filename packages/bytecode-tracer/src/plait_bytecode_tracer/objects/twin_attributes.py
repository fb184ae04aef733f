"""What the program sees of the attributes of an object of a C class that a twin stands for."""

from __future__ import annotations

import types

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.statics import MISSING, static_attribute
from plait_bytecode_tracer.twins.registry import TWINS
from plait_bytecode_tracer.values.lookup import is_defined
from plait_bytecode_tracer.values.variables import Known, ObjectVariable, Variable

ABSENT_OF_TWIN = Known(MISSING)
"""An attribute that objects of the C class lack."""


def is_seen(frame: Frame) -> bool:
    """Whether the code of a frame is the program's, not that of a twin."""
    return "IS_TWIN" not in frame.function.globals


def of_twin(owner: ObjectVariable, name: str) -> Variable | None:
    """What the C class says of an attribute, where its twin says something else; else None."""
    kind, static = TWINS[owner.cls].kind, static_attribute(owner.cls, name)
    if name == "__doc__":
        return constant(kind.__doc__)
    if not is_defined(kind, name):
        return None if static is MISSING else ABSENT_OF_TWIN
    if static is MISSING and name not in owner.attributes:
        raise TraceBreakError("GB0007", f"the attribute {name!r} of a {kind.__name__}")
    return None


def require_settable(cls: type, name: str) -> None:
    """Break at attributes of an object of C's that are kept where its twin has no place."""
    kind = TWINS[cls].kind
    is_open = kind.__dictoffset__ and kind is not types.SimpleNamespace
    if is_open or (kind is not types.SimpleNamespace and is_defined(kind, name)):
        raise TraceBreakError("GB0007", f"a write to {name!r} of a {kind.__name__}")
