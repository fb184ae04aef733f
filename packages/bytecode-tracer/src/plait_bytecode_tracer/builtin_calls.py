"""Builtin functions and operators on tracked values."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import inspect
import math
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from plait_bytecode_tracer.attributes import call_method, find_attribute, load_attribute
from plait_bytecode_tracer.containers import (
    changed,
    constant_key,
    contains,
    describe,
    extend,
    get_item,
    hold,
    plain_value,
)
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frame import Frame, constant
from plait_bytecode_tracer.iteration import elements, iterate, next_item, over
from plait_bytecode_tracer.objects import (
    MISSING,
    delete_object_attribute,
    special_method,
    static_attribute,
)
from plait_bytecode_tracer.raising import PythonError, exception_class, fails, python_error
from plait_bytecode_tracer.sources import Source
from plait_bytecode_tracer.variables import (
    BoundVariable,
    DictVariable,
    FunctionVariable,
    GeneratorVariable,
    IteratorVariable,
    Known,
    MethodVariable,
    ObjectVariable,
    PartialVariable,
    SequenceVariable,
    SetVariable,
    SliceVariable,
    SuperVariable,
    TensorVariable,
    Variable,
    ViewVariable,
    is_constant,
    is_fixed,
)

Builtin = Callable[..., Variable]
_table: dict[Any, Builtin] = {}

FOLDED: frozenset[Any] = frozenset(
    {
        *(abs, bin, bool, bytes, chr, complex, divmod, float, format, hex, int, oct, ord),
        *(pow, repr, round, str, ascii, range, slice, hash, torch.finfo, torch.iinfo, torch.Size),
        *(torch.device, torch.is_tensor, torch.promote_types, torch.can_cast),
        *(value for name, value in vars(math).items() if callable(value)),
        *(value for name, value in vars(operator).items() if callable(value) and name[0] != "_"),
    }
)
"""Functions of constants that are called while tracing."""


def builtin(*functions: Any) -> Callable[[Builtin], Builtin]:
    """Register how builtin functions run on tracked values."""

    def register(rule: Builtin) -> Builtin:
        for function in functions:
            if function in _table:
                raise ValueError(f"{function} has two rules")
            _table[function] = rule
        return rule

    return register


@functools.cache
def signature_of(rule: Builtin) -> inspect.Signature:
    """The signature of a rule, against which the traced call's arguments are bound."""
    return inspect.signature(rule)


def find_builtin(function: Any) -> Builtin | None:
    """The rule of a builtin function, if there is one."""
    try:
        return _table.get(function)
    except TypeError:
        return None


def has_tensor(value: Any) -> bool:
    """Whether a tensor occurs in a variable or container of variables."""
    match value:
        case TensorVariable():
            return True
        case SequenceVariable():
            return any(has_tensor(item) for item in value.items)
        case DictVariable():
            return any(has_tensor(item) for item in value.items.values())
        case SliceVariable():
            return any(has_tensor(part) for part in value.parts)
        case list() | tuple():
            return any(has_tensor(item) for item in value)
        case dict():
            return any(has_tensor(item) for item in value.values())
    return False


def apply(frame: Frame, function: Callable[..., Any], args: list[Variable]) -> Variable:
    """An operator: on tensors a node, on constants its value, else the class's method."""
    if has_tensor(args) and any(isinstance(a, TensorVariable) for a in args):
        if isinstance(args[0], Known) and type(args[0].value).__module__ == "numpy":
            raise TraceBreakError("GB0009", "an operator of a NumPy scalar and a tensor")
        target = args[0]
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
    if isinstance(left, SequenceVariable):
        other = args[1] if len(args) > 1 else None
        if function in (operator.add, operator.iadd) and isinstance(other, SequenceVariable):
            if function is operator.iadd and left.kind is list:
                left.items.extend(other.items)
                changed(frame, left)
                return left
            return SequenceVariable([*left.items, *other.items], left.kind)
        if function is operator.add and isinstance(other, Known) and type(other.value) is tuple:
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


def fold(function: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """Call a function of values that cannot change."""
    plain = [_fixed_value(arg) for arg in args]
    named = {name: _fixed_value(value) for name, value in kwargs.items()}
    try:
        result = function(*plain, **named)
    except Exception as error:
        raise python_error(error) from error
    return tracked(result)


def _fixed_value(variable: Variable) -> Any:
    value = plain_value(variable)
    if isinstance(variable, Known) and not (is_fixed(value) or callable(value)):
        raise TraceBreakError("GB0009", f"the value of a {type(value).__name__}")
    return value


def tracked(value: Any) -> Variable:
    """A new value that Python computed: containers are tracked by their elements."""
    if type(value) in (list, tuple) and not is_constant(value):
        return SequenceVariable([tracked(item) for item in value], type(value))
    if type(value) is dict:
        return DictVariable({key: tracked(item) for key, item in value.items()})
    if type(value) in (set, frozenset):
        return SetVariable(set(value), kind=type(value))
    return constant(value)


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


@builtin(len)
def len_(frame: Frame, value: Variable) -> Variable:
    match value:
        case SequenceVariable() | DictVariable() | SetVariable():
            return constant(len(value.items))
        case ViewVariable():
            return constant(len(value.owner.items))
        case TensorVariable():
            return constant(len(value.fake))
        case Known(real) if is_constant(real) or isinstance(real, torch.nn.Module):
            if isinstance(real, torch.nn.Module) and value.source is not None:
                load_attribute(frame, value, "_modules")
            return constant(len(real))
    return call_method(frame, value, "__len__", [])


def type_of(value: Variable) -> type:
    """The class of a tracked value."""
    match value:
        case TensorVariable():
            return value.cls
        case Known():
            return type(value.value)
        case SequenceVariable() | DictVariable() | ViewVariable():
            return value.kind
        case SetVariable():
            return value.kind
        case ObjectVariable():
            return value.cls
        case FunctionVariable():
            return type(lambda: None)
        case SliceVariable():
            return slice
        case BoundVariable():
            return type(_Probe().method)
        case PartialVariable():
            return functools.partial
    raise TraceBreakError("GB0009", f"the class of a {describe(value)}")


class _Probe:
    def method(self) -> None:
        """Only its type is of interest."""


@builtin(isinstance)
def isinstance_(frame: Frame, value: Variable, classes: Variable) -> Variable:
    wanted = _classes(classes)
    if isinstance(value, TensorVariable):
        sample = torch.empty(0, dtype=value.fake.dtype)
        if value.cls is torch.nn.Parameter:
            sample = torch.nn.Parameter(sample, requires_grad=False)
        return constant(isinstance(sample, wanted))
    if isinstance(value, Known):
        return constant(isinstance(value.value, wanted))
    if isinstance(value, IteratorVariable):
        is_generator = isinstance(value, GeneratorVariable)
        kind = types.GeneratorType if is_generator else type(iter(()))
        return constant(issubclass(kind, wanted))
    return constant(issubclass(type_of(value), wanted))


def _classes(value: Variable) -> Any:
    return plain_value(value)


@builtin(issubclass)
def issubclass_(frame: Frame, value: Variable, classes: Variable) -> Variable:
    return constant(issubclass(plain_value(value), _classes(classes)))


@builtin(type)
def type_(frame: Frame, value: Variable) -> Variable:
    return constant(type_of(value))


@builtin(getattr)
def getattr_(
    frame: Frame, owner: Variable, name: Variable, default: Variable | None = None
) -> Variable:
    try:
        return load_attribute(frame, owner, plain_value(name))
    except PythonError as error:
        if default is None or not issubclass(exception_class(error.value), AttributeError):
            raise
        return default


@builtin(hasattr)
def hasattr_(frame: Frame, owner: Variable, name: Variable) -> Variable:
    try:
        return constant(find_attribute(frame, owner, plain_value(name)) is not None)
    except PythonError as error:
        if not issubclass(exception_class(error.value), AttributeError):
            raise
        return constant(False)


@builtin(setattr)
def setattr_(frame: Frame, owner: Variable, name: Variable, value: Variable) -> Variable:
    from plait_bytecode_tracer.attributes import store_attribute

    store_attribute(frame, owner, plain_value(name), value)
    return constant(None)


@builtin(delattr)
def delattr_(frame: Frame, owner: Variable, name: Variable) -> Variable:
    delete_object_attribute(frame, owner, plain_value(name))
    return constant(None)


@builtin(callable)
def callable_(frame: Frame, value: Variable) -> Variable:
    if isinstance(value, ObjectVariable):
        return constant(static_attribute(value.cls, "__call__") is not MISSING)
    if isinstance(value, Known):
        return constant(callable(value.value))
    callables = FunctionVariable | BoundVariable | MethodVariable | PartialVariable
    return constant(isinstance(value, callables))


@builtin(iter)
def iter_(frame: Frame, value: Variable) -> Variable:
    if isinstance(value, ObjectVariable):
        method = special_method(frame, value, "__iter__")
        if method is not None:
            return _call(frame, method, [])
    return iterate(frame, value)


@builtin(next)
def next_(frame: Frame, iterator: Variable, default: Variable | None = None) -> Variable:
    found = next_item(frame, iterator)
    if found is not None:
        return found
    if default is None:
        stop_iteration(iterator)
    return default


def stop_iteration(iterator: Variable) -> NoReturn:
    """Raise StopIteration with what a generator has returned."""
    result = iterator.frame.result if isinstance(iterator, GeneratorVariable) else None
    is_none = result is None or (isinstance(result, Known) and result.value is None)
    fails(StopIteration, *([] if is_none else [result]))


@builtin(enumerate)
def enumerate_(frame: Frame, values: Variable, start: Variable | None = None) -> Variable:
    source = iterate(frame, values)
    count = plain_value(start) if start is not None else 0

    def step() -> Variable | None:
        nonlocal count
        item = source.next_()
        if item is None:
            return None
        count += 1
        return SequenceVariable([constant(count - 1), item], tuple)

    return IteratorVariable(step, source.is_pure)


@builtin(zip)
def zip_(frame: Frame, *values: Variable, strict: Variable | None = None) -> Variable:
    sources = [iterate(frame, value) for value in values]
    is_strict = strict is not None and truth(frame, strict)

    def step() -> Variable | None:
        items: list[Variable] = []
        for source in sources:
            item = source.next_()
            if item is None:
                if is_strict:
                    _check_all_ended(sources, len(items))
                return None
            items.append(item)
        return SequenceVariable(items, tuple) if items else None

    return IteratorVariable(step, all(source.is_pure for source in sources))


def _check_all_ended(sources: list[IteratorVariable], ended: int) -> None:
    """The ValueError of `zip(strict=True)` where argument `ended` is the first without a next."""
    before = "argument 1" if ended == 1 else f"arguments 1-{ended}"
    if ended:
        fails(ValueError, f"zip() argument {ended + 1} is shorter than {before}")
    for position, source in enumerate(sources[1:], 1):
        if source.next_() is not None:
            before = "argument 1" if position == 1 else f"arguments 1-{position}"
            fails(ValueError, f"zip() argument {position + 1} is longer than {before}")


@builtin(map)
def map_(frame: Frame, function: Variable, *values: Variable) -> Variable:
    from plait_bytecode_tracer.calls import call

    sources = [iterate(frame, value) for value in values]

    def step() -> Variable | None:
        items = [source.next_() for source in sources]
        present = [item for item in items if item is not None]
        return call(frame, function, present, {}) if len(present) == len(items) else None

    return IteratorVariable(step, False)


@builtin(filter)
def filter_(frame: Frame, function: Variable, values: Variable) -> Variable:
    from plait_bytecode_tracer.calls import call

    source = iterate(frame, values)
    is_none = isinstance(function, Known) and function.value is None

    def step() -> Variable | None:
        while (item := source.next_()) is not None:
            if truth(frame, item if is_none else call(frame, function, [item], {})):
                return item
        return None

    return IteratorVariable(step, False)


@builtin(reversed)
def reversed_(frame: Frame, values: Variable) -> Variable:
    is_object = isinstance(values, ObjectVariable) or (
        isinstance(values, Known) and not is_fixed(values.value)
    )
    if not is_object:
        return over(list(reversed(list(elements(frame, values)))))
    method = special_method(frame, values, "__reversed__")
    if method is not None:
        return _call(frame, method, [])
    position = plain_value(len_(frame, values))

    def step() -> Variable | None:
        nonlocal position
        position -= 1
        return None if position < 0 else get_item(frame, values, constant(position))

    return IteratorVariable(step, False)


@builtin(sorted)
def sorted_(
    frame: Frame, values: Variable, *, key: Variable | None = None, reverse: Variable | None = None
) -> Variable:
    from plait_bytecode_tracer.calls import call

    items = list(elements(frame, values))
    ranks = [item if key is None else call(frame, key, [item], {}) for item in items]
    order = sorted(
        range(len(items)),
        key=lambda n: plain_value(ranks[n]),
        reverse=bool(reverse is not None and plain_value(reverse)),
    )
    return SequenceVariable([items[n] for n in order], list)


@builtin(sum)
def sum_(frame: Frame, values: Variable, start: Variable | None = None) -> Variable:
    total: Variable = constant(0) if start is None else start
    for item in elements(frame, values):
        total = apply(frame, operator.add, [total, item])
    return total


@builtin(min)
def min_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    return _extreme(frame, min, values, options)


@builtin(max)
def max_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    return _extreme(frame, max, values, options)


def _extreme(
    frame: Frame, function: Any, values: tuple[Variable, ...], options: dict[str, Variable]
) -> Variable:
    items = list(elements(frame, values[0])) if len(values) == 1 else list(values)
    default, key = options.pop("default", None), options.pop("key", None)
    if not items:
        if default is None:
            new = sys.version_info >= (3, 12)
            text = "iterable argument is empty" if new else "arg is an empty sequence"
            fails(ValueError, f"{function.__name__}() {text}")
        return default
    if options:
        raise TraceBreakError("GB0006", f"{function.__name__} with an unknown option")
    is_none = key is None or (isinstance(key, Known) and key.value is None)
    ranks = items if is_none or key is None else [_call(frame, key, [item]) for item in items]
    wins = operator.lt if function is min else operator.gt
    best = 0
    for position in range(1, len(items)):
        if truth(frame, apply(frame, wins, [ranks[position], ranks[best]])):
            best = position
    return items[best]


@builtin(any)
def any_(frame: Frame, values: Variable) -> Variable:
    return constant(any(truth(frame, item) for item in elements(frame, values)))


@builtin(all)
def all_(frame: Frame, values: Variable) -> Variable:
    return constant(all(truth(frame, item) for item in elements(frame, values)))


@builtin(list)
def list_(frame: Frame, values: Variable | None = None) -> Variable:
    return SequenceVariable([] if values is None else list(elements(frame, values)), list)


@builtin(tuple)
def tuple_(frame: Frame, values: Variable | None = None) -> Variable:
    if isinstance(values, SequenceVariable) and values.kind is tuple:
        return values
    return SequenceVariable([] if values is None else list(elements(frame, values)), tuple)


@builtin(set)
def set_(frame: Frame, values: Variable | None = None) -> Variable:
    items = [] if values is None else list(elements(frame, values))
    return SetVariable({constant_key(item) for item in items})


@builtin(frozenset)
def frozenset_(frame: Frame, values: Variable | None = None) -> Variable:
    if isinstance(values, SetVariable) and values.kind is frozenset:
        return values
    items = [] if values is None else list(elements(frame, values))
    return SetVariable({constant_key(item) for item in items}, kind=frozenset)


@builtin(dict)
def dict_(frame: Frame, values: Variable | None = None, /, **items: Variable) -> Variable:
    made = DictVariable({})
    if values is not None:
        extend(frame, made, values)
    made.items.update(items)
    return made


@builtin(super)
def super_(frame: Frame, cls: Variable | None = None, instance: Variable | None = None) -> Variable:
    if cls is None or instance is None:
        cls = frame.cells["__class__"].content
        if cls is None:
            original = frame.cells["__class__"].original
            cls = constant(original.cell_contents if original else None)
        first = frame.code.co_varnames[0]
        held = frame.locals.get(first)
        instance = held if held is not None else frame.cells[first].content
    if instance is None:
        raise TraceBreakError("GB0007", "super() without an object")
    return SuperVariable(plain_value(cls), instance, type_of(instance))


@builtin(print)
def print_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    """Printed after the graph has run, in the order of the program."""
    simple = all(isinstance(value, Known) and is_constant(value.value) for value in values)
    if id(sys) in frame.state.attributes:
        raise TraceBreakError("GB0005", "the code prints after it has replaced sys.stdout")
    if not simple or any(name not in ("sep", "end", "flush") for name in options):
        raise TraceBreakError("GB0005", "the code prints a value that only the graph's run gives")
    frame.state.deferred.append((constant(print), list(values), dict(options)))
    return constant(None)


@builtin(builtins.input, builtins.open)
def open_(frame: Frame, *values: Variable, **options: Variable) -> Variable:
    raise TraceBreakError("GB0005", "the code reads or writes a file")


@builtin(weakref.ref, weakref.proxy, weakref.finalize)
def weak_reference(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """A break resumes with the object held by the frames around it, which would keep it alive."""
    raise TraceBreakError("GB0013", "a weak reference is made")


@builtin(locals, vars, dir, eval, exec, sys._getframe, inspect.currentframe, inspect.stack)
def frame_dependent(frame: Frame, *args: Variable, **kwargs: Variable) -> Variable:
    """What looks at the variables of its caller, which only Python's own frame has."""
    name = "vars" if args else "locals"
    raise TraceBreakError("GB0013", f"{name}(), or a function like it, looks into the frame")


@builtin(id)
def id_(frame: Frame, value: Variable) -> Variable:
    raise TraceBreakError("GB0009", "the id of an object")


@builtin(operator.getitem)
def operator_getitem(frame: Frame, container: Variable, key: Variable) -> Variable:
    return get_item(frame, container, key)


@builtin(operator.contains)
def operator_contains(frame: Frame, container: Variable, item: Variable) -> Variable:
    return constant(contains(frame, container, item))


@builtin(functools.partial)
def partial(frame: Frame, function: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    return PartialVariable(function, list(args), dict(kwargs))


@builtin(functools.reduce)
def reduce(
    frame: Frame, function: Variable, values: Variable, initial: Variable | None = None
) -> Variable:
    from plait_bytecode_tracer.calls import call

    items = list(elements(frame, values))
    if initial is None and not items:
        fails(TypeError, "reduce() of empty iterable with no initial value")
    total = items.pop(0) if initial is None else initial
    for item in items:
        total = call(frame, function, [total, item], {})
    return total


@builtin(torch.is_tensor)
def is_tensor(frame: Frame, value: Variable) -> Variable:
    return constant(isinstance(value, TensorVariable))


@builtin(torch._jit_internal.is_scripting)
def is_scripting(frame: Frame) -> Variable:
    return constant(False)


@builtin(inspect.signature)
def signature(frame: Frame, function: Variable, **options: Variable) -> Variable:
    return _of_definition(inspect.signature, function, options)


@builtin(dataclasses.fields)
def fields(frame: Frame, owner: Variable) -> Variable:
    return _of_definition(dataclasses.fields, owner, {})


@builtin(dataclasses.is_dataclass)
def is_dataclass(frame: Frame, owner: Variable) -> Variable:
    if isinstance(owner, Known):
        return constant(dataclasses.is_dataclass(owner.value))
    return constant(dataclasses.is_dataclass(type_of(owner)))


def _of_definition(function: Any, owner: Variable, options: dict[str, Variable]) -> Variable:
    """What a function tells of a definition, which does not change while it lives."""
    if isinstance(owner, ObjectVariable):
        owner = constant(owner.cls)
    if isinstance(owner, BoundVariable) and isinstance(owner.function, Known):
        owner = constant(types.MethodType(owner.function.value, _Probe()))
    if not isinstance(owner, Known):
        raise TraceBreakError("GB0009", f"{function.__name__} of a {describe(owner)}")
    try:
        found = function(owner.value, **{n: plain_value(v) for n, v in options.items()})
    except (TypeError, ValueError) as error:
        raise python_error(error) from error
    if isinstance(found, tuple):
        return SequenceVariable([constant(item) for item in found], tuple)
    return constant(found)
