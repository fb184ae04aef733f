"""Methods of constant texts that are given objects of the program's own: `"{}".format(thing)`.

What C asks of such an object is asked in the trace: its `__format__` and `__str__`, and the
text or number inside one whose class inherits from `str` or `int`.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import get_item
from plait_bytecode_tracer.objects.folding import fold
from plait_bytecode_tracer.objects.indices import with_index
from plait_bytecode_tracer.objects.iteration import elements, require_iterable
from plait_bytecode_tracer.objects.objects import storage_of
from plait_bytecode_tracer.values.constants import is_constant, is_fixed
from plait_bytecode_tracer.values.variables import (
    Known,
    ObjectVariable,
    SequenceVariable,
    Variable,
)

_string: Any = vars(string)["_string"]
_BY_CONVERSION: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}
_DEEPEST = 2
"""How deep fields of a format stand within specifications, as `str.format` allows it."""


def text_method(
    frame: Frame, method: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A method of a constant text or of bytes; None where it is given constants alone.

    Args:
        frame: where it happens.
        method: the bound method.
        args, kwargs: what it is given.
    """
    given = [*args, *kwargs.values()]
    if all(isinstance(arg, Known) and is_constant(arg.value) for arg in given):
        return None
    name, text = method.__name__, method.__self__
    if type(text) is str and name == "format":
        return _Format(frame, args, kwargs).text(text, _DEEPEST)
    if type(text) is str and name == "format_map" and len(args) == 1 and not kwargs:
        return _Format(frame, [], args[0]).text(text, _DEEPEST)
    if name == "join" and len(args) == 1 and not kwargs:
        found = elements(frame, require_iterable(args[0]))
        items = [_inner(frame, item, type(text)) for item in found]
        return fold(method, [SequenceVariable(items, list)], {})
    if not any(map(_is_object, given)):
        return None
    plain = [_inner(frame, arg) for arg in args]
    return fold(method, plain, {key: _inner(frame, value) for key, value in kwargs.items()})


def _is_object(value: Variable) -> bool:
    return isinstance(value, ObjectVariable) or (
        isinstance(value, Known) and not is_fixed(value.value)
    )


def _inner(frame: Frame, value: Variable, kind: type | None = None) -> Variable:
    """The constant in an object of a class that inherits from one, or that stands for a number.

    Breaks where C would name the object's class, which is not of the `kind` that is wanted.
    """
    if not _is_object(value):
        return value
    found = storage_of(frame, value)
    if found is None and kind is None:
        found = with_index(frame, value)
    if isinstance(found, Known) and isinstance(found.value, kind or (str, bytes, int)):
        return found
    raise TraceBreakError("GB0008", "a method of a text with an object as an argument")


class _Format:
    """`str.format` and `str.format_map`, whose fields are asked for in the trace."""

    def __init__(
        self, frame: Frame, args: list[Variable], named: dict[str, Variable] | Variable
    ) -> None:
        self.frame = frame
        self.args = args
        self.named = named
        self.count = 0
        """How many fields without a name or number have been seen."""
        self.is_numbered = False
        """Whether there has been a field with a number."""

    def text(self, template: str, depth: int) -> Variable:
        """The text of a template, or of the specification of a field."""
        if depth == 0:
            raise self._faulty("fields that are nested too deeply")
        parts: list[str] = []
        try:
            fields = list(_string.formatter_parser(template))
        except ValueError as error:
            raise self._faulty(str(error)) from error
        for literal, name, spec, conversion in fields:
            parts.append(literal)
            if name is not None:
                parts.append(self._field(name, spec or "", conversion, depth))
        return constant("".join(parts))

    def _field(self, name: str, spec: str, conversion: str | None, depth: int) -> str:
        value = self._value(name)
        if conversion is not None:
            function = _BY_CONVERSION.get(conversion)
            if function is None:
                raise self._faulty(f"an unknown conversion {conversion!r}")
            value = self.frame.call(constant(function), [value], {})
        inner = self.text(spec, depth - 1) if spec else constant("")
        made = self.frame.call(constant(format), [value, inner], {})
        if not isinstance(made, Known) or not isinstance(made.value, str):
            raise TraceBreakError("GB0004", "a text that only the graph's run gives in a format")
        return made.value

    def _value(self, name: str) -> Variable:
        first, rest = _string.formatter_field_name_split(name)
        if first == "":
            first, self.count = self.count, self.count + 1
        elif isinstance(first, int):
            self.is_numbered = True
        if self.is_numbered and self.count:
            raise self._faulty("fields with and without numbers")
        if isinstance(first, int) and not isinstance(self.named, dict):
            raise self._faulty("numbers of fields with a mapping")
        if isinstance(self.named, Variable):
            value = get_item(self.frame, self.named, constant(first))
        elif isinstance(first, int) and first < len(self.args):
            value = self.args[first]
        elif first in self.named:
            value = self.named[first]
        else:
            raise self._faulty("a field that is not given")
        for is_attribute, key in rest:
            if is_attribute:
                value = load_attribute(self.frame, value, key)
            else:
                value = get_item(self.frame, value, constant(key))
        return value

    def _faulty(self, cause: str) -> TraceBreakError:
        return TraceBreakError("GB0006", f"a format with {cause}")
