"""Code that makes exceptions of the trace real, with their tracebacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.exceptions.raising import native_class
from plait_bytecode_tracer.exceptions.tracebacks import make_traceback
from plait_bytecode_tracer.residual.instances import set_own_attributes
from plait_bytecode_tracer.values.variables import (
    ExceptionStorage,
    Known,
    ObjectVariable,
    TracebackVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.residual.rebuild import Rebuilder

_LAST = ("__cause__", "__suppress_context__")
"""Setting a cause suppresses the context."""


def new_exception(rebuilder: Rebuilder, variable: ObjectVariable) -> str:
    """The name of a new exception, whose fields are filled in."""
    constants = rebuilder.state.constants
    storage = variable.base
    assert isinstance(storage, ExceptionStorage)
    native: Any = native_class(variable.cls)
    given = [rebuilder.real(variable.cls)]
    fields = dict(storage.fields)
    if issubclass(native, BaseExceptionGroup):
        given += [rebuilder.value(fields.pop(name)) for name in ("message", "exceptions")]
    name = rebuilder.assign(f"{constants.name(native.__new__)}({', '.join(given)})")
    rebuilder.names[id(variable)] = name
    put = constants.name(object.__setattr__)
    items = "".join(f"{rebuilder.value(item)}, " for item in storage.items)
    arguments = fields.pop("args", None)
    shown = f"({items})" if arguments is None else rebuilder.value(arguments)
    rebuilder.lines.append(f"{put}({name}, 'args', {shown})")
    for field in sorted(fields, key=lambda f: _LAST.index(f) if f in _LAST else -1):
        value = rebuilder.value(fields[field])
        rebuilder.lines.append(f"{put}({name}, {field!r}, {value})")
    set_own_attributes(rebuilder, name, variable)
    return name


def new_traceback(rebuilder: Rebuilder, variable: TracebackVariable) -> str:
    """The name of a real traceback with the code, lines and positions of the trace's frames."""
    constants = rebuilder.state.constants
    code, namespace = variable.frame.code, variable.frame.function.globals
    following: Variable | None = variable.following
    rest = rebuilder.value(following if following is not None else Known(None))
    place = f"({variable.offset}, {variable.line})"
    made = f"{constants.name(code)}, {constants.name(namespace)}, {place}, {rest}"
    return rebuilder.assign(f"{constants.name(make_traceback)}({made})")
