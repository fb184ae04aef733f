"""`text % values` over tracked values."""

from __future__ import annotations

import re

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import get_item
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.objects import storage_of
from plait_bytecode_tracer.objects.statics import MISSING, static_attribute
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
)

_CONVERSION = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<flags>[#0\- +]*)(?P<width>\*|\d*)"
    r"(?P<precision>(?:\.(?:\*|\d*))?)[hlL]?(?P<kind>.)",
    re.DOTALL,
)
_BY_CALL = {"s": str, "r": repr, "a": ascii}
"""Conversions that call a function of any object."""


def percent(frame: Frame, text: str, values: Variable) -> Variable:
    """`text % values`: conversions that call `str` or `repr` do so in the trace."""
    if isinstance(values, Known) and is_constant(values.value):
        return fold(str.__mod__, [constant(text), values], {})
    if isinstance(values, ObjectVariable | Known):
        stored = storage_of(frame, values)
        if isinstance(stored, SequenceVariable) and issubclass(stored.kind, tuple):
            values = stored
    found = list(_CONVERSION.finditer(text))
    conversions = [match for match in found if match["kind"] != "%"]
    if any("*" in match["width"] + match["precision"] for match in conversions):
        raise TraceBreakError("GB0008", "a format whose widths are arguments")
    named = [match["key"] is not None for match in conversions]
    if conversions and all(named):
        if not isinstance(values, DictVariable) and issubclass(type_of(values), (str, tuple)):
            raise TraceBreakError("GB0006", "a format of names with no mapping")
        if static_attribute(type_of(values), "__getitem__") is MISSING:
            raise TraceBreakError("GB0006", "a format of names with no mapping")
        given = [get_item(frame, values, constant(match["key"])) for match in conversions]
    elif isinstance(values, SequenceVariable) and issubclass(values.kind, tuple):
        given = list(values.items)
    else:
        given = [values]
    if len(given) != len(conversions) or any(named) is not all(named):
        raise TraceBreakError("GB0008", "a format with other arguments than it names")
    made = [_converted(frame, m["kind"], v) for m, v in zip(conversions, given, strict=True)]
    plain = _CONVERSION.sub(lambda match: _without_key(match), text)
    return fold(str.__mod__, [constant(plain), SequenceVariable(made, tuple)], {})


def _without_key(match: re.Match[str]) -> str:
    kind = "s" if match["kind"] in _BY_CALL else match["kind"]
    return f"%{match['flags']}{match['width']}{match['precision']}{kind}"


def _converted(frame: Frame, kind: str, value: Variable) -> Variable:
    function = _BY_CALL.get(kind)
    if function is not None:
        return frame.call(constant(function), [value], {})
    if not isinstance(value, Known) or not is_constant(value.value):
        raise TraceBreakError("GB0008", f"a format %{kind} of an object")
    return value
