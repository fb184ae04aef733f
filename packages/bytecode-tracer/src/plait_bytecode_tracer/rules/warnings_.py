"""`warnings.warn`: shown after the graph has run, as of the user's line."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.outside.sinks import has_plain_warnings
from plait_bytecode_tracer.outside.tables import written_globals
from plait_bytecode_tracer.rules.outputs import require_plain
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.variables import Known, SymbolVariable, Variable

_BY_TEXT = "as its text says"


def action_for(text: str | None, category: type[Warning], module: str, line: int) -> str:
    """What the filters of the process do with a warning, as `warnings.warn_explicit` finds it.

    Where the text is not known, `_BY_TEXT` if a filter asks for it.
    """
    for action, message, kind, where, number in warnings.filters:
        concerns = (
            issubclass(category, kind)
            and (where is None or where.match(module))
            and number in (0, line)
        )
        if concerns and message is not None and text is None:
            return _BY_TEXT
        if concerns and (message is None or text is None or message.match(text)):
            return action
    return str(vars(warnings)["defaultaction"])


def warn_at(
    message: str, category: type[Warning], file: str, line: int, space: dict[str, Any]
) -> None:
    """Warn as code of a module does at a line."""
    registry = space.setdefault("__warningregistry__", {})
    module = space.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, file, line, module, registry)


@builtin(warnings.warn)
def warn(
    frame: Frame,
    message: Variable,
    category: Variable | None = None,
    stacklevel: Variable | None = None,
    source: Variable | None = None,
    **more: Variable,
) -> Variable:
    kind = UserWarning if category is None else _plain(category)
    kind = UserWarning if kind is None else kind
    level = 1 if stacklevel is None else _plain(stacklevel)
    changes = isinstance(message, SymbolVariable)
    text = message.hint if isinstance(message, SymbolVariable) else _plain(message)
    known = isinstance(text, str) and isinstance(kind, type) and issubclass(kind, Warning)
    if not known or type(level) is not int or source is not None or more:
        raise TraceBreakError("GB0005", "the code warns of something that is no text")
    if written_globals(frame.state, vars(warnings)) is not None:
        raise TraceBreakError("GB0005", "the code warns after it has changed how that is done")
    require_plain(frame, has_plain_warnings, "warns of")
    user = _caller(frame, level)
    space, line = user.function.globals, user.line_at(user.instruction)
    module = str(space.get("__name__") or "<string>")
    ask = functools.partial(action_for, None if changes else text, kind, module, line)
    action = ask()
    if action in ("error", _BY_TEXT):
        raise TraceBreakError("GB0005", "the code warns, which is an error or depends on the text")
    shown = f"what is done with the warning {text!r} is {action!r}"
    frame.state.require(None, Kind.MODE, Mode(ask, action), shown)
    given = [message, constant(kind), constant(user.code.co_filename), constant(line), Known(space)]
    frame.state.deferred.append((constant(warn_at), given, {}))
    return constant(None)


def _plain(value: Variable) -> Any:
    return value.value if isinstance(value, Known) else NotImplemented


def _caller(frame: Frame, level: int) -> Frame:
    """The frame that a warning is about. Raises TraceBreakError where it is outside."""
    found: Frame | None = frame
    for _ in range(max(level, 1) - 1):
        found = found.parent if found is not None else None
    hidden = found is None or found.code.co_filename.startswith("<")
    if found is None or hidden:
        raise TraceBreakError("GB0005", "the code warns about a line outside of the traced code")
    return found
