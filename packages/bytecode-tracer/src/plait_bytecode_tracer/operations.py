"""Operators, comparison and truth of tracked values."""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.classes import type_of
from plait_bytecode_tracer.containers import changed, describe, extend, hold, plain_value
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.folding import fold, has_tensor, tracked
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.iteration import elements
from plait_bytecode_tracer.objects import special_method
from plait_bytecode_tracer.raising import fails, python_error
from plait_bytecode_tracer.rules.registry import Builtin
from plait_bytecode_tracer.sources import Source
from plait_bytecode_tracer.tensor_values import UNKNOWN, value_of
from plait_bytecode_tracer.variables import (
    BoundVariable,
    DictVariable,
    Known,
    ObjectVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    TensorVariable,
    Variable,
    ViewVariable,
    is_constant,
    is_fixed,
)


def apply(frame: Frame, function: Callable[..., Any], args: list[Variable]) -> Variable:
    """An operator: on tensors a node, on constants its value, else the class's method."""
    if has_tensor(args) and any(isinstance(a, TensorVariable) for a in args):
        if isinstance(args[0], Known) and type(args[0].value).__module__ == "numpy":
            raise TraceBreakError("GB0009", "an operator of a NumPy scalar and a tensor")
        target = args[0]
        if function is operator.pow and isinstance(target, Known):
            function = torch.pow  # a graph prints operators, and -3 ** x is -(3 ** x)
        if function in _IN_PLACE:
            if isinstance(target, TensorVariable):
                frame.state.mutates_tensors = True
            else:
                function = getattr(operator, _plain_name(function))
        node, result = frame.state.emit("call_function", function, args, {})
        if isinstance(target, TensorVariable) and result is target.fake:
            return target
        return frame.state.tensor_result(node, result)
    if all(isinstance(a, Known) and is_constant(a.value) for a in args):
        if function in (operator.invert, operator.inv) and isinstance(plain_value(args[0]), bool):
            raise TraceBreakError("GB0005", "~ of a bool, which warns in newer Pythons")
        return fold(function, args, {})
    return _apply_objects(frame, function, args)


def _constant_tuple(value: Variable) -> Any:
    """A constant, or a tuple of constants; else something that is no constant."""
    if isinstance(value, SequenceVariable) and value.kind is tuple:
        return tuple(_constant_tuple(item) for item in value.items)
    return value.value if isinstance(value, Known) else value


_IN_PLACE = frozenset(
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


def _apply_objects(frame: Frame, function: Callable[..., Any], args: list[Variable]) -> Variable:
    left = args[0]
    if any(isinstance(arg, Known) and type(arg.value) is torch.Size for arg in args) and all(
        is_constant(_constant_tuple(arg)) for arg in args
    ):
        return fold(function, args, {})
    if isinstance(left, SequenceVariable):
        other = args[1] if len(args) > 1 else None
        if function in (operator.add, operator.iadd) and isinstance(other, SequenceVariable):
            if issubclass(left.kind, list) is not issubclass(other.kind, list):
                raise TraceBreakError("GB0008", "a list and a tuple are added")
            if function is operator.iadd and left.kind is list:
                left.items.extend(other.items)
                changed(frame, left)
                return left
            return SequenceVariable([*left.items, *other.items], left.kind)
        if function is operator.iadd and left.kind is list and other is not None:
            left.items.extend(elements(frame, other))
            changed(frame, left)
            return left
        adds = function in (operator.add, operator.iadd) and left.kind is tuple
        if adds and isinstance(other, Known) and type(other.value) is tuple:
            return SequenceVariable([*left.items, *map(constant, other.value)], left.kind)
        if function is operator.mul and isinstance(other, Known) and _is_small(left, other.value):
            return SequenceVariable(left.items * other.value, left.kind)
    if (
        isinstance(left, Known)
        and type(left.value) in (tuple, torch.Size)
        and isinstance(args[-1], SequenceVariable)
    ):
        items: list[Variable] = [constant(item) for item in left.value]
        return _apply_objects(frame, function, [SequenceVariable(items, tuple), *args[1:]])
    if isinstance(left, DictVariable) and function in (operator.or_, operator.ior):
        return _merge(frame, function, left, args[1])
    if isinstance(left, SetVariable) and isinstance(args[-1], SetVariable):
        result = function(set(left.items), plain_value(args[-1]))
        if not isinstance(result, set):
            return constant(result)
        if function.__name__.startswith("i"):
            changed(frame, left)
            left.items.clear()
            left.items.update(result)
            return left
        return SetVariable(result, kind=left.kind)
    if isinstance(left, ViewVariable) or isinstance(args[-1], ViewVariable):
        return _apply_views(frame, function, args)
    return apply_operator(frame, function, args)


def _apply_views(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """A set operation or comparison of `keys()` or `items()` of dicts without tensors."""
    sides = [
        {plain_value(item) for item in elements(frame, arg)}
        if isinstance(arg, ViewVariable) and arg.name != "values"
        else plain_value(arg)
        for arg in args
    ]
    try:
        return tracked(function(*sides))
    except TypeError as error:
        raise python_error(error) from error


def _is_small(sequence: SequenceVariable, count: Any) -> bool:
    """Whether a sequence can be repeated in the trace."""
    return isinstance(count, int) and len(sequence.items) * count <= 1_000_000


def _merge(frame: Frame, function: Any, left: DictVariable, right: Variable) -> Variable:
    if function is operator.ior:
        extend(frame, left, right)
        return left
    made = DictVariable(left.items.copy(), left.kind, factory=left.factory)
    extend(frame, made, hold(right, DictVariable))
    return made


_OPERATOR_FUNCTIONS: dict[str, Builtin] = {}


def operator_rule(rule: Builtin) -> Builtin:
    """Register how a function of `operator` that is no operator runs on tracked values."""
    _OPERATOR_FUNCTIONS[rule.__name__.strip("_")] = rule
    return rule


def apply_function(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """A function of the module `operator`."""
    rule = _OPERATOR_FUNCTIONS.get(function.__name__.strip("_"))
    return apply(frame, function, args) if rule is None else rule(frame, *args)


@operator_rule
def truth_(frame: Frame, value: Variable) -> Variable:
    return constant(truth(frame, value))


@operator_rule
def not_(frame: Frame, value: Variable) -> Variable:
    return constant(not truth(frame, value))


@operator_rule
def is_(frame: Frame, left: Variable, right: Variable) -> Variable:
    return constant(identical(frame, left, right))


@operator_rule
def is_not(frame: Frame, left: Variable, right: Variable) -> Variable:
    return constant(not identical(frame, left, right))


@operator_rule
def concat(frame: Frame, left: Variable, right: Variable) -> Variable:
    return apply(frame, operator.add, [left, right])


@operator_rule
def iconcat(frame: Frame, left: Variable, right: Variable) -> Variable:
    return apply(frame, operator.iadd, [left, right])


@operator_rule
def countOf(frame: Frame, values: Variable, item: Variable) -> Variable:  # its name
    found = [element_equal(frame, member, item) for member in elements(frame, values)]
    return constant(sum(found))


@operator_rule
def index(frame: Frame, value: Variable) -> Variable:
    if takes_object([value]):
        return call_special(frame, operator.index, [value])
    return fold(operator.index, [value], {})


_REFLECTED: dict[str, str] = {
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "eq": "eq",
    "ne": "ne",
    **{n: f"r{n}" for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")},
    **{n: f"r{n}" for n in ("and", "or", "xor", "lshift", "rshift")},
}
"""The method of the right operand that Python tries when the left one's does not apply."""


def apply_operator(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """An operator through the special methods of its operands' classes."""
    name = function.__name__.strip("_")
    tries: list[tuple[Variable, str, list[Variable]]] = []
    plain = name
    if function in _IN_PLACE:
        plain = name.removeprefix("i")
        tries.append((args[0], f"__{name}__", args[1:]))
    tries.append((args[0], f"__{plain}__", args[1:]))
    if len(args) == 2 and plain in _REFLECTED:
        reflected = (args[1], f"__{_REFLECTED[plain]}__", [args[0]])
        kinds = type_of(args[0]), type_of(args[1])
        first = kinds[1] is not kinds[0] and issubclass(kinds[1], kinds[0])
        tries.insert(0 if first else len(tries), reflected)
    for owner, method_name, others in tries:
        if not isinstance(owner, ObjectVariable | Known):
            continue
        if isinstance(owner, Known) and is_constant(owner.value):
            continue
        method = special_method(frame, owner, method_name)
        if method is None:
            continue
        result = _call(frame, method, others)
        if not (isinstance(result, Known) and result.value is NotImplemented):
            return result
    compares: tuple[Any, ...] = (operator.eq, operator.ne)
    if function in compares and len(args) == 2:
        return constant(equal(frame, args[0], args[1]) is (function is operator.eq))
    shown = " and ".join(describe(arg) for arg in args)
    raise TraceBreakError("GB0008", f"{function.__name__} of {shown}")


def _call(frame: Frame, function: Variable, args: list[Variable]) -> Variable:
    from plait_bytecode_tracer.calls import call

    return call(frame, function, args, {})


def identical(frame: Frame, left: Variable, right: Variable) -> bool:
    """`left is right`, guarded where later calls may give other objects."""
    found = same(left, right)
    one: Source | None = getattr(left, "source", None)
    other: Source | None = getattr(right, "source", None)
    if not found and one is not None and other is not None:
        known = [isinstance(v, Known) and is_constant(v.value) for v in (left, right)]
        if not all(known):
            text = f"{one.text} is not {other.text}"
            frame.state.guard(one, f"{{}} is not {other.code}", text)
    return found


def same(left: Variable, right: Variable) -> bool:
    """Whether two variables are one object."""
    if isinstance(left, Known) and isinstance(right, Known):
        return left.value is right.value
    if isinstance(left, Known) or isinstance(right, Known):
        return False
    return left is right


def equal(frame: Frame, left: Variable, right: Variable) -> bool:
    """`left == right` for values without tensors."""
    if same(left, right):
        return True
    match left, right:
        case (SequenceVariable(), SequenceVariable()):
            related = left.kind is right.kind or (issubclass(left.kind, tuple) and issubclass(
                right.kind, tuple
            ))  # fmt: skip
            return related and len(left.items) == len(right.items) and all(
                element_equal(frame, one, other)
                for one, other in zip(left.items, right.items, strict=True)
            )  # fmt: skip
        case (DictVariable(), DictVariable()):
            ordered = collections.OrderedDict
            keys = list(left.items), list(right.items)
            both_ordered = issubclass(left.kind, ordered) and issubclass(right.kind, ordered)
            if keys[0] != keys[1] if both_ordered else set(keys[0]) != set(keys[1]):
                return False
            return all(
                element_equal(frame, item, right.items[key]) for key, item in left.items.items()
            )
        case (BoundVariable(), BoundVariable()):
            return same(left.self, right.self) and same(left.function, right.function)
        case (ObjectVariable(), _) | (_, ObjectVariable()):
            return False
    if has_tensor([left, right]):
        raise TraceBreakError("GB0003", "a comparison of containers of tensors")
    if isinstance(left, Known) and isinstance(right, Known):
        if is_constant(left.value) and is_constant(right.value):
            return bool(left.value == right.value)
        if _identity_equality(left.value) and _identity_equality(right.value):
            return False
    if not _has_plain_value(left) or not _has_plain_value(right):
        return False
    return bool(plain_value(left) == plain_value(right))


def element_equal(frame: Frame, left: Variable, right: Variable) -> bool:
    """Whether an element is what is searched for: the same object, or equal to it."""
    return same(left, right) or truth(frame, apply(frame, operator.eq, [left, right]))


def _identity_equality(value: Any) -> bool:
    """Whether objects of the value's class are equal only to themselves."""
    comparison: Any = type(value).__eq__
    return comparison in (object.__eq__, type.__eq__)


def _has_plain_value(value: Variable) -> bool:
    return isinstance(value, Known | SequenceVariable | DictVariable | SetVariable | SliceVariable)


SPECIAL_NAMES: dict[Any, str] = {
    **{kind: f"__{kind.__name__}__" for kind in (int, float, complex, str, repr, hash)},
    abs: "__abs__",
    round: "__round__",
    format: "__format__",
    operator.index: "__index__",
    bin: "__index__",
    hex: "__index__",
    oct: "__index__",
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
    divmod: "__divmod__",
    bytes: "__bytes__",
}
"""The special method that a builtin function calls on its argument."""


def call_special(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """A builtin function of an object, through the special method of its class."""
    owner = args[0]
    if function is bool:
        return constant(truth(frame, owner))
    name = SPECIAL_NAMES.get(function)
    method = special_method(frame, owner, name) if name is not None else None
    if function is hash and isinstance(method, Known) and method.value is None:
        fails(TypeError, f"unhashable type: {type_of(owner).__name__!r}")
    if method is None:
        raise TraceBreakError("GB0009", f"{getattr(function, '__name__', function)} of an object")
    result = _call(frame, method, args[1:])
    if name == "__index__" and function is not operator.index:
        return fold(function, [result], {})
    return result


def takes_object(args: list[Variable]) -> bool:
    """Whether the first argument of a builtin function is an object with a class of its own."""
    if not args:
        return False
    owner = args[0]
    if isinstance(owner, ObjectVariable):
        return True
    return isinstance(owner, Known) and not is_fixed(owner.value) and not callable(owner.value)


def truth(frame: Frame, value: Variable) -> bool:
    """`bool(value)`. Breaks on the value of a tensor."""
    match value:
        case TensorVariable():
            known = value_of(frame.state, value, "bool")
            if known is not UNKNOWN:
                return bool(known)
            raise TraceBreakError("GB0003", "the code branches on the value of a tensor")
        case SequenceVariable() | DictVariable() | SetVariable():
            return bool(value.items)
        case ViewVariable():
            return bool(value.owner.items)
        case Known(real):
            if is_constant(real):
                return bool(real)
            return _object_truth(frame, value)
        case ObjectVariable():
            return _object_truth(frame, value)
    return True


def _object_truth(frame: Frame, value: Variable) -> bool:
    for name in ("__bool__", "__len__"):
        method = special_method(frame, value, name)
        if method is not None:
            return truth(frame, _call(frame, method, []))
    return True
