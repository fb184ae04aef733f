"""Builtin functions that ask the class of their argument: `int`, `repr`, `hash`, `round`..."""

from __future__ import annotations

import enum
import math
import operator
import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails, python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.folding import fold, fold_in
from plait_bytecode_tracer.objects.indices import with_index
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.objects.objects import guard_shown, special_method, storage_of
from plait_bytecode_tracer.objects.operations import apply, apply_function, truth
from plait_bytecode_tracer.objects.representation import represent
from plait_bytecode_tracer.objects.standins import fails_for_real, stand_in
from plait_bytecode_tracer.objects.statics import MISSING, is_python, static_attribute
from plait_bytecode_tracer.objects.text_methods import text_method
from plait_bytecode_tracer.values.classes import name_in_errors, type_of
from plait_bytecode_tracer.values.constants import is_constant, is_definition, is_fixed
from plait_bytecode_tracer.values.lookup import is_a
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    Variable,
    ViewVariable,
)

_REAL = ("__float__", "__index__")
_INDEX = ("__index__",)
SPECIALS: dict[Any, tuple[str, ...]] = {
    int: ("__int__", "__index__", "__trunc__"),
    float: _REAL,
    complex: ("__complex__", *_REAL),
    str: ("__str__",),
    repr: ("__repr__",),
    ascii: ("__repr__",),
    hash: ("__hash__",),
    abs: ("__abs__",),
    round: ("__round__",),
    format: ("__format__",),
    operator.index: _INDEX,
    bin: _INDEX,
    hex: _INDEX,
    oct: _INDEX,
    chr: _INDEX,
    bytes: ("__bytes__", "__index__"),
    math.floor: ("__floor__", *_REAL),
    math.ceil: ("__ceil__", *_REAL),
    math.trunc: ("__trunc__",),
    **dict.fromkeys((math.factorial, math.isqrt), _INDEX),
    **dict.fromkeys((math.sqrt, math.exp, math.log, math.log2, math.log10, math.fabs), _REAL),
    **dict.fromkeys((math.sin, math.cos, math.tan, math.isnan, math.isinf, math.isfinite), _REAL),
}
"""The special methods that a builtin function looks for on its argument, in order."""
_AS_IT_IS = ("__abs__", "__round__", "__floor__", "__ceil__", "__trunc__")
"""Methods whose result can be anything."""
_EXACT = (int, float, complex, str, bytes)
_CONTAINERS = SequenceVariable | DictVariable | SetVariable | ViewVariable


def takes_object(args: list[Variable]) -> bool:
    """Whether the first argument of a builtin function is an object with a class of its own."""
    if not args:
        return False
    owner = args[0]
    if isinstance(owner, ObjectVariable):
        return True
    if isinstance(owner, Known) and is_a(owner.value, type):
        return type(owner.value).__module__ not in _PLAIN_METACLASSES
    return isinstance(owner, Known) and not (is_fixed(owner.value) or is_definition(owner.value))


_PLAIN_METACLASSES = frozenset({"builtins", "abc", "enum", "typing"})
"""The modules of metaclasses whose classes C code shows as they are."""


def call_folded(
    frame: Frame, function: Any, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """A builtin function, or a method of a constant, that is called while tracing."""
    if function is bool and len(args) == 1 and not kwargs:
        return constant(truth(frame, args[0], after=True))
    if not kwargs and getattr(function, "__module__", "") == "_operator":
        return apply_function(frame, function, args)
    if function in (str, repr, ascii) and len(args) == 1 and isinstance(args[0], _CONTAINERS):
        text = represent(frame, args[0])
        return constant(ascii(_Text(text)) if function is ascii else text)
    if function is format and args and isinstance(args[0], _CONTAINERS):
        return _format_container(frame, *args)
    if function in (divmod, pow) and len(args) == 2 and not kwargs:
        fixed = all(isinstance(arg, Known) and is_constant(arg.value) for arg in args)
        if not fixed:
            return apply(frame, operator.pow if function is pow else function, args)
    if function is pow and len(args) == 3 and isinstance(args[0], ObjectVariable):
        method = special_method(frame, args[0], "__pow__")
        if method is not None:
            return frame.call(method, args[1:], {})
    if function is hash and len(args) == 1 and not kwargs:
        found = _hash_of_tuple(frame, args[0])
        if found is not None:
            return found
    if type(getattr(function, "__self__", None)) in (str, bytes):
        of_objects = text_method(frame, function, args, kwargs)
        if of_objects is not None:
            return of_objects
    receiver = getattr(function, "__self__", None)
    if type(receiver) is tuple and any(takes_object([arg]) for arg in args) and not kwargs:
        items: list[Variable] = [constant(item) for item in receiver]
        bound = MethodVariable(SequenceVariable(items, tuple), function.__name__)
        return frame.call(bound, args, {})
    if (takes_object(args) or _shows_itself(function, args)) and not kwargs:
        return call_special(frame, function, args)
    if function is bytes and len(args) == 1 and isinstance(args[0], IteratorVariable):
        args = [SequenceVariable(list(elements(frame, args[0])), list)]
    if function in (str, repr, ascii, format) and args and isinstance(args[0], Known):
        guard_shown(frame, args[0].value)
    return fold_in(frame, function, args, kwargs)


def _hash_of_tuple(frame: Frame, value: Variable) -> Variable | None:
    """The hash of a tuple with objects in it, each asked for its own; None of other values."""
    if not isinstance(value, SequenceVariable) or value.kind is not tuple:
        return None
    if not any(takes_object([item]) or isinstance(item, SequenceVariable) for item in value.items):
        return None
    parts = []
    for item in value.items:
        found = call_folded(frame, hash, [item], {})
        if not isinstance(found, Known):
            raise TraceBreakError("GB0009", "the hash of an object")
        parts.append(stand_in(object, {"__hash__": lambda self, known=found.value: known}))
    return constant(hash(tuple(parts)))


def _shows_itself(function: Any, args: list[Variable]) -> bool:
    """Whether a member of an enum answers a builtin function by Python of the user's."""
    owner = args[0] if args else None
    if function not in SPECIALS or not isinstance(owner, Known):
        return False
    if not isinstance(owner.value, enum.Enum):
        return False
    names = (*SPECIALS[function], "__str__", "__repr__", "__format__")
    found = [static_attribute(type(owner.value), name) for name in names]
    return any(is_python(method) and method.__module__ != "enum" for method in found)


def _format_container(frame: Frame, value: Variable, spec: Variable | None = None) -> Variable:
    if spec is not None and not (isinstance(spec, Known) and spec.value == ""):
        kind = type_of(value).__name__
        fails(TypeError, f"unsupported format string passed to {kind}.__format__")
    return constant(represent(frame, value))


class _Text:
    """Something whose representation is a given text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


_OF_INTEGERS = frozenset(
    {math.comb, math.perm, math.factorial, math.gcd, math.lcm, math.isqrt, range, chr, bytes}
)


def _of_numbers(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """A builtin function of the numbers that objects stand for."""
    if not is_a(getattr(function, "__self__", None), types.ModuleType | type | None):
        raise TraceBreakError("GB0009", f"{function.__qualname__} of an object")
    numbers = [_number(frame, function, arg) for arg in args]
    if any(takes_object([number]) for number in numbers):
        raise TraceBreakError("GB0009", f"{getattr(function, '__name__', function)} of an object")
    return fold(function, numbers, {})


def _number(frame: Frame, function: Any, value: Variable) -> Variable:
    if not takes_object([value]):
        return value
    stored = storage_of(frame, value)
    if isinstance(stored, Known):
        return stored
    if function not in _OF_INTEGERS and special_method(frame, value, "__float__") is not None:
        return frame.call(constant(float), [value], {})
    return with_index(frame, value)


def call_special(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """A builtin function of an object, through the special method of its class."""
    owner, rest = args[0], args[1:]
    if function is format and not rest:
        rest = [constant("")]
    if function is bool:
        return constant(truth(frame, owner, after=True))
    names = SPECIALS.get(function)
    number = with_index(frame, owner) if names == _INDEX and not rest else owner
    if isinstance(number, Known) and type(number.value) is int:
        return fold(function, [number], {})
    if names is None or (rest and function not in (round, format)):
        return _of_numbers(frame, function, args)
    for name in names:
        static = static_attribute(type_of(owner), name)
        method = special_method(frame, owner, name)
        if static is None and name == "__hash__":
            fails(TypeError, f"unhashable type: {name_in_errors(type_of(owner))!r}")
        if static is MISSING or method is None:
            continue
        if function is int and name == "__trunc__":
            raise TraceBreakError("GB0005", "int() by __trunc__, which warns")
        result = frame.call(method, rest, {})
        return result if name in _AS_IT_IS else _checked(function, owner, name, result, rest)
    return fails_for_real(function, args)


def _checked(
    function: Any, owner: Variable, name: str, result: Variable, rest: list[Variable]
) -> Variable:
    """What the function makes of the method's result: it may be of a wrong class."""
    if not isinstance(result, Known) or not is_constant(result.value):
        raise TraceBreakError("GB0008", f"{name} that returns no number or text")
    value = result.value
    if isinstance(value, _EXACT) and type(value) not in _EXACT:
        raise TraceBreakError("GB0008", f"{name} that returns a {type(value).__name__}")
    given = stand_in(type_of(owner), {name: lambda *_: value})
    plain = [arg.value for arg in rest if isinstance(arg, Known)]
    try:
        return constant(function(given, *plain))
    except Exception as error:
        raise python_error(error) from error


def canonical(function: Any) -> Any:
    """The builtin function of the interpreter, for one of a second copy of its module."""
    if is_a(function, types.BuiltinFunctionType) and function.__module__ == "_operator":
        return getattr(operator, function.__name__, function)
    return function
