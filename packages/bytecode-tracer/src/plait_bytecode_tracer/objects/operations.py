"""Operators, comparison and truth of tracked values."""

from __future__ import annotations

import enum
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails
from plait_bytecode_tracer.frames.arity import refuse
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.expectations import checked_truth
from plait_bytecode_tracer.objects.folding import fold, has_tensor
from plait_bytecode_tracer.objects.formatting import percent
from plait_bytecode_tracer.objects.objects import special_method
from plait_bytecode_tracer.objects.standins import fails_for_real
from plait_bytecode_tracer.objects.statics import is_python, static_attribute
from plait_bytecode_tracer.outside.functions import settled
from plait_bytecode_tracer.rules.objects import len_
from plait_bytecode_tracer.shapes.arithmetic import apply_symbolic, concrete
from plait_bytecode_tracer.shapes.sequences import add_sizes
from plait_bytecode_tracer.tensors.function_modes import through_mode
from plait_bytecode_tracer.tensors.patches import require_own
from plait_bytecode_tracer.tensors.subclasses import dispatch, holds_subclass
from plait_bytecode_tracer.tensors.values import UNKNOWN, value_of
from plait_bytecode_tracer.values.classes import type_of
from plait_bytecode_tracer.values.constants import is_constant, is_nan
from plait_bytecode_tracer.values.hook_numbers import HookNumber
from plait_bytecode_tracer.values.open_lists import is_joined_open
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    DictVariable,
    IdVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SubclassVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
    ViewVariable,
    is_array_variable,
)


def apply(frame: Frame, function: Callable[..., Any], args: list[Variable]) -> Variable:
    """An operator: on tensors a node, on constants its value, else the class's method."""
    if any(map(is_array_variable, args)):
        from plait_bytecode_tracer.arrays.ufuncs import array_operator

        return array_operator(frame, function, args)
    if function in _JOINS and is_joined_open(*args, in_place=function is operator.iadd):
        return _apply_objects(frame, function, args)
    if holds_subclass(args):
        if any(isinstance(arg, SubclassVariable) for arg in args):
            return dispatch(frame, function, args, {})
        raise TraceBreakError("GB0009", "an operator of containers of tensors of a subclass")
    if has_tensor(args) and any(isinstance(a, TensorVariable) for a in args):
        intercepted = through_mode(frame, function, args, {})
        if intercepted is not None:
            return intercepted
        if isinstance(args[0], Known) and type(args[0].value).__module__ == "numpy":
            raise TraceBreakError("GB0009", "an operator of a NumPy scalar and a tensor")
        if function in _REMAINDERS and isinstance(args[0], Known) and type(args[0].value) is str:
            return percent(frame, args[0].value, args[1])
        from plait_bytecode_tracer.objects.mixed_operators import by_object

        answered = by_object(frame, function, args)
        if answered is not None:
            return answered
        target = args[0]
        if function is operator.pow and isinstance(target, Known):
            function = torch.pow  # a graph prints operators, and -3 ** x is -(3 ** x)
        if function in IN_PLACE:
            if isinstance(target, TensorVariable):
                frame.state.mutates_tensors = True
            else:
                function = getattr(operator, _plain_name(function))
        node, result = frame.state.emit("call_function", function, args, {})
        if isinstance(target, TensorVariable) and result is target.fake:
            return target
        return frame.state.tensor_result(node, result)
    if function in (operator.eq, operator.ne) and isinstance(args[0], IdVariable):
        found_same = _same_ids(frame, args[0], args[1])
        return constant(found_same is (function is operator.eq))
    if any(isinstance(a, SymbolVariable) for a in args):
        found = apply_symbolic(function, args)
        return apply(frame, function, [concrete(a) for a in args]) if found is None else found
    if all(isinstance(a, Known) and is_constant(a.value) for a in args):
        if function in (operator.invert, operator.inv) and isinstance(plain_value(args[0]), bool):
            raise TraceBreakError("GB0005", "~ of a bool, which warns in newer Pythons")
        if any(_defines(arg, function) for arg in args):
            raise TraceBreakError("GB0009", "an operator that the class of an enum defines")
        return fold(function, args, {})
    return _apply_objects(frame, function, args)


_JOINS = (operator.add, operator.iadd)
_REMAINDERS = (operator.mod, operator.imod)


def _same_ids(frame: Frame, one: IdVariable, other: Variable) -> bool:
    if not isinstance(other, IdVariable):
        raise TraceBreakError("GB0009", "the id of an object")
    return identical(frame, one.value, other.value)


def _defines(value: Variable, function: Any) -> bool:
    """Whether a member of an enum has Python code of the user's for an operator."""
    if not isinstance(value, Known) or not isinstance(value.value, enum.Enum):
        return False
    name = function.__name__.strip("_")
    names = (f"__{name}__", f"__{_plain_name(function).strip('_')}__", f"__r{name}__")
    found = [static_attribute(type(value.value), wanted) for wanted in names]
    return any(is_python(method) and method.__module__ != "enum" for method in found)


def _constant_tuple(value: Variable) -> Any:
    """A constant, or a tuple of constants; else something that is no constant."""
    if isinstance(value, SequenceVariable) and value.kind is tuple:
        return tuple(_constant_tuple(item) for item in value.items)
    return value.value if isinstance(value, Known) else value


IN_PLACE = frozenset(
    {
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
        *(operator.imod, operator.ipow, operator.imatmul, operator.iand, operator.ior),
        *(operator.ixor, operator.ilshift, operator.irshift),
    }
)


def _plain_name(function: Any) -> str:
    """The operator that an in-place one falls back to."""
    name = function.__name__.strip("_").removeprefix("i")
    return f"{name}_" if name in ("and", "or") else name


def apply_function(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """A function of the module `operator` that has no rule of its own."""
    if len(args) != len(_signature(function).parameters):
        refuse(function, args, {})
    if function not in OPERATORS:
        raise TraceBreakError("GB0002", f"operator.{function.__name__} of an object")
    return apply(frame, function, args)


@functools.cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


_NAMES = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift"),
    *("and_", "or_", "xor", "neg", "pos", "invert", "inv", "abs"),
    *("lt", "le", "eq", "ne", "gt", "ge"),
)
OPERATORS = IN_PLACE | {getattr(operator, name) for name in _NAMES}


def _apply_objects(frame: Frame, function: Callable[..., Any], args: list[Variable]) -> Variable:
    """An operator through the classes of its operands."""
    from plait_bytecode_tracer.objects.binary import binary
    from plait_bytecode_tracer.objects.comparison import COMPARISONS, compare

    if any(isinstance(arg, HookNumber) for arg in args):
        return apply(frame, function, [settled(frame.state, arg) for arg in args])
    found = add_sizes(function, args)
    if found is not None:
        return found
    if any(isinstance(arg, Known) and type(arg.value) is torch.Size for arg in args) and all(
        is_constant(_constant_tuple(arg)) for arg in args
    ):
        return fold(function, [constant(_constant_tuple(arg)) for arg in args], {})
    if function in COMPARISONS:
        return compare(frame, function, *args)
    if len(args) == 2:
        return binary(frame, function, *args)
    name = f"__{function.__name__.strip('_')}__"
    has_class = isinstance(args[0], Known | ObjectVariable)
    method = special_method(frame, args[0], name) if has_class else None
    if method is None:
        fails_for_real(function, args)
    return _call(frame, method, [])


def _call(frame: Frame, function: Variable, args: list[Variable]) -> Variable:
    return frame.call(function, args, {})


def identical(frame: Frame, left: Variable, right: Variable) -> bool:
    """`left is right`, guarded where later calls may give other objects."""
    if isinstance(left, SymbolVariable) or isinstance(right, SymbolVariable):
        return _identical_numbers(left, right)
    if isinstance(left, HookNumber) or isinstance(right, HookNumber):
        return identical(frame, settled(frame.state, left), settled(frame.state, right))
    if isinstance(left, Known) != isinstance(right, Known):
        left, right = settled(frame.state, left), settled(frame.state, right)
    found = same(left, right)
    one: Source | None = getattr(left, "source", None)
    other: Source | None = getattr(right, "source", None)
    if one is not None and other is not None:
        known = [isinstance(v, Known) and is_constant(v.value) for v in (left, right)]
        if all(known):
            _guard_objects(frame, left, right, found)
        elif not found:
            text = f"{one.text} is not {other.text}"
            frame.state.guard(one, f"{{}} is not {other.code}", text)
    return found


_OF_ITS_KIND = (type(None), bool, type(Ellipsis), type(NotImplemented), enum.Enum, type)
"""Classes of constants of which equal ones are one object."""


def _guard_objects(frame: Frame, left: Variable, right: Variable, found: bool) -> None:
    """Guard whether two equal constants are one object, which their values do not tell."""
    assert isinstance(left, Known)
    assert isinstance(right, Known)
    one, other = left.source, right.source
    is_told = isinstance(left.value, _OF_ITS_KIND) or type(left.value) is not type(right.value)
    if is_told or one is None or other is None or one.code == other.code:
        return
    if left.value == right.value or left.value != left.value:  # NaN
        word = "is" if found else "is not"
        text = f"{one.text} {word} {other.text}"
        frame.state.guard(one, f"{{}} {word} {other.code}", text)


def _identical_numbers(left: Variable, right: Variable) -> bool:
    """`left is right` for numbers, of which one at least is symbolic."""
    if type_of(left) is not type_of(right):
        return False
    return left is right or plain_value(left) is plain_value(right)


def same(left: Variable, right: Variable) -> bool:
    """Whether two variables are one object."""
    if isinstance(left, Known) and isinstance(right, Known):
        return left.value is right.value
    if isinstance(left, Known) or isinstance(right, Known):
        return False
    return left is right


def element_equal(frame: Frame, left: Variable, right: Variable) -> bool:
    """Whether an element is what is searched for: the same object, or equal to it."""
    if all(isinstance(value, Known) and is_nan(value.value) for value in (left, right)):
        raise found_by_identity()
    if same(left, right) or truth(frame, apply(frame, operator.eq, [left, right])):
        return True
    floats = [value for value in (left, right) if may_be_nan(value)]
    if len(floats) == 2:  # they may be one object
        number = next(value for value in floats if isinstance(value, SymbolVariable))
        if not truth(frame, apply(frame, operator.eq, [number, number])):
            raise found_by_identity()
    return False


def found_by_identity() -> TraceBreakError:
    """The break at a search for what equals nothing, not even itself."""
    return TraceBreakError("GB0009", "a search for NaN, which is found by its identity")


def may_be_nan(value: Variable) -> bool:
    """Whether a float is NaN, or may be in another call."""
    if isinstance(value, Known):
        return is_nan(value.value)
    return isinstance(value, SymbolVariable) and value.kind is float


def truth(frame: Frame, value: Variable, *, after: bool = False) -> bool:
    """`bool(value)`. Breaks on the value of a tensor, unless one is expected of it.

    The running instruction tests the value, or with `after` gives its truth.
    """
    match value:
        case ArrayVariable():
            from plait_bytecode_tracer.arrays.conversions import array_truth

            return array_truth(frame, value)
        case TensorVariable():
            intercepted = through_mode(frame, bool, [value], {})
            if intercepted is not None:
                return truth(frame, intercepted, after=after)
            require_own(frame.state, "__bool__")
            expected = checked_truth(frame, value, after=after)
            if expected is not None:
                return expected
            known = value_of(frame.state, value, "bool")
            if known is not UNKNOWN:
                return bool(known)
            raise TraceBreakError("GB0003", "the code branches on the value of a tensor")
        case SubclassVariable():
            raise TraceBreakError("GB0003", "the code branches on the value of a tensor")
        case HookNumber():
            return truth(frame, value.settled())
        case SymbolVariable():
            expected = checked_truth(frame, value, after=after)
            return value.owner.decide(value) if expected is None else expected
        case SequenceVariable() | DictVariable() | SetVariable():
            return bool(value.items)
        case ViewVariable():
            return bool(value.owner.items)
        case Known(real):
            if real is NotImplemented:
                raise TraceBreakError("GB0005", "NotImplemented as a truth value, which warns")
            if is_constant(real):
                return bool(real)
            return _object_truth(frame, value, after=after)
        case ObjectVariable():
            return _object_truth(frame, value, after=after)
    return True


def _object_truth(frame: Frame, value: Variable, *, after: bool) -> bool:
    method = special_method(frame, value, "__bool__")
    if method is not None:
        found = _call(frame, method, [])
        kind = type_of(found)
        if kind is not bool:
            fails(TypeError, f"__bool__ should return bool, returned {kind.__name__}")
        return truth(frame, found, after=after)
    if special_method(frame, value, "__len__") is None:
        return True
    return truth(frame, len_(frame, value))
