"""Calls of NumPy's universal functions, and operators of arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plait_bytecode_tracer.arrays.context import Context
from plait_bytecode_tracer.arrays.elementwise import COMPLEX, FLOATS, SCALARS, TENSORS
from plait_bytecode_tracer.arrays.layout import ordered
from plait_bytecode_tracer.arrays.traced import Traced
from plait_bytecode_tracer.arrays.values import TORCH_DTYPES, dtype_of, torch_dtype
from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame
from plait_bytecode_tracer.values.numpy_objects import is_numpy_constant
from plait_bytecode_tracer.values.variables import (
    ArrayVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    Variable,
)

_NUMBERS = (int, float, complex)


def call_ufunc(
    frame: Frame, ufunc: np.ufunc, args: Sequence[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """`ufunc(*args, **kwargs)`, of which one argument at least is an array."""
    context = Context(frame, f"numpy.{ufunc.__name__}")
    kwargs = dict(kwargs)
    out, dtype = kwargs.pop("out", None), kwargs.pop("dtype", None)
    if len(args) == ufunc.nin + 1 and out is None:
        *args, out = args
    if kwargs or len(args) != ufunc.nin or ufunc.nout != 1:
        context.refuse()
    if isinstance(out, SequenceVariable) and len(out.items) == 1:
        out = out.items[0]
    if isinstance(out, Known) and out.value is None:
        out = None
    if ufunc is np.matmul:
        from plait_bytecode_tracer.arrays.linear import matmul

        found: Variable = matmul(context, *args)
        if dtype is not None or out is not None:
            context.refuse()
        return found
    wanted = None if dtype is None else context.constant(dtype)
    result, is_scalar = computed(context, ufunc, args, wanted)
    if out is not None:
        return context.store(context.array(out), result)
    made = context.result(result, given=args, scalar=is_scalar)
    return ordered(context, ufunc, args, kwargs, made, elementwise=True)


def computed(
    context: Context, ufunc: np.ufunc, args: Sequence[Variable], dtype: Any = None
) -> tuple[Traced, bool]:
    """What a universal function computes, and whether NumPy gives it as a scalar."""
    name = ufunc.__name__
    rule = SCALARS.get(name) or TENSORS.get(name)
    if rule is None:
        context.refuse("arrays")
    operands = [_operand(context, arg) for arg in args]
    loop = _loop(context, ufunc, [_type(operand) for operand in operands], dtype)
    kinds = {found.kind for found in loop}
    refused = ("c" in kinds and name not in COMPLEX) or (name in FLOATS and kinds != {"f"})
    if refused or any(found.type not in TORCH_DTYPES for found in loop):
        context.refuse(f"elements of {loop[0]}")
    if name == "power":
        _check_power(context, loop, operands)
    numbers = name in SCALARS and "c" not in kinds
    types = [loop[-1]] * len(operands) if name == "divide" else loop[: len(operands)]
    given = [
        _converted(context, operand, found, as_number=numbers)
        for operand, found in zip(operands, types, strict=True)
    ]
    if name == "power" and _is_half(operands[1]) and loop[0].kind == "f":
        is_root = isinstance(operands[0], ArrayVariable) and not operands[0].is_scalar
        rule = TENSORS["sqrt_of"] if is_root else rule  # NumPy's own way to x ** 0.5
    result = rule(context.t, *given)
    if result.dtype is not torch_dtype(loop[-1]):
        result = result.to(torch_dtype(loop[-1]))
    return result, result.dim() == 0


def operands_of(context: Context, values: Sequence[Variable]) -> tuple[list[Any], np.dtype[Any]]:
    """Values as tensors in the type that fits all."""
    operands = [_operand(context, value) for value in values]
    types = [_type(operand) for operand in operands]
    weak = {bool: False, int: 0, float: 0.0, complex: 0j}
    dtype = np.result_type(*[weak[each] if isinstance(each, type) else each for each in types])
    found = [_converted(context, operand, dtype, as_number=False) for operand in operands]
    return found, dtype


def _operand(context: Context, value: Variable) -> Variable:
    """An array, or a number that is not one."""
    if isinstance(value, SymbolVariable) and value.kind in _NUMBERS:
        return value
    if isinstance(value, Known):
        kind = type(value.value)
        if kind in (bool, *_NUMBERS) or is_numpy_constant(value.value):
            return value
    return context.array(value)


def _type(operand: Variable) -> Any:
    """What decides the types: a dtype, or the class of a Python number."""
    if isinstance(operand, SymbolVariable):
        return operand.kind
    if isinstance(operand, Known):
        kind = type(operand.value)
        return kind if kind in _NUMBERS else np.dtype(np.asarray(operand.value).dtype)
    assert isinstance(operand, ArrayVariable)
    return dtype_of(operand)


def _loop(
    context: Context, ufunc: np.ufunc, types: Sequence[Any], dtype: Any
) -> tuple[np.dtype[Any], ...]:
    """The types that a universal function computes in: NumPy itself tells."""
    chosen: dict[str, Any] = {}
    if dtype is not None:
        chosen["signature"] = (*[None] * len(types), np.dtype(dtype))
    resolve: Any = ufunc.resolve_dtypes
    try:
        found: tuple[np.dtype[Any], ...] = resolve((*types, None), **chosen)
    except TypeError as error:
        raise TraceBreakError("GB0008", f"{context.name} fails: {error}") from error
    return found


def _is_half(exponent: Variable) -> bool:
    return isinstance(exponent, Known) and exponent.value == 0.5


def _check_power(
    context: Context, loop: Sequence[np.dtype[Any]], operands: Sequence[Variable]
) -> None:
    """Integers to negative powers raise, which only values tell."""
    exponent = operands[1]
    known = isinstance(exponent, Known) and exponent.value >= 0
    if loop[-1].kind == "i" and not known:
        context.refuse("integers to powers that may be negative")


def _converted(
    context: Context, operand: Variable, dtype: np.dtype[Any], *, as_number: bool
) -> Any:
    """An operand in the type of the loop."""
    if isinstance(operand, ArrayVariable):
        return context.traced(operand, dtype)
    number: Any = operand
    if isinstance(operand, SymbolVariable) and dtype.itemsize < 8 and dtype.kind in "iu":
        number = Known(context.constant(operand))  # it may be too large
    if isinstance(number, Known):
        try:
            weak = type(number.value) in _NUMBERS
            found = np.array(number.value, dtype) if weak else np.asarray(number.value)
            number = found.astype(dtype).item()
        except OverflowError as error:
            raise TraceBreakError("GB0008", f"{context.name} fails: {error}") from error
    if as_number:
        return number
    return context.t.full((), number, dtype=torch_dtype(dtype), device="cpu")


# Operators.

_OPERATORS: dict[Any, np.ufunc] = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.divide,
    operator.floordiv: np.floor_divide,
    operator.mod: np.remainder,
    operator.pow: np.power,
    operator.matmul: np.matmul,
    operator.lshift: np.left_shift,
    operator.rshift: np.right_shift,
    operator.and_: np.bitwise_and,
    operator.or_: np.bitwise_or,
    operator.xor: np.bitwise_xor,
    operator.neg: np.negative,
    operator.pos: np.positive,
    operator.abs: np.absolute,
    operator.invert: np.invert,
    operator.inv: np.invert,
    operator.lt: np.less,
    operator.le: np.less_equal,
    operator.eq: np.equal,
    operator.ne: np.not_equal,
    operator.gt: np.greater,
    operator.ge: np.greater_equal,
}
_IN_PLACE: dict[Any, np.ufunc] = {
    getattr(operator, f"i{name.__name__.strip('_')}"): ufunc
    for name, ufunc in _OPERATORS.items()
    if hasattr(operator, f"i{name.__name__.strip('_')}") and name is not operator.inv
}
_OPERAND_KINDS = (bool, int, float, complex, list, tuple)
METHODS: dict[str, tuple[Callable[..., Any], bool]] = {
    f"__{function.__name__.strip('_')}__": (function, False)
    for function in (*_OPERATORS, *_IN_PLACE)
} | {
    f"__r{function.__name__.strip('_')}__": (function, True)
    for function, ufunc in _OPERATORS.items()
    if ufunc.nin == 2 and ufunc.nout == 1
}
"""Operators by the names of their methods, and whether the operands change places."""


def array_operator(frame: Frame, function: Any, args: list[Variable]) -> Variable:
    """An operator of which one operand is an array."""
    context = Context(frame, f"the operator {function.__name__}")
    if not all(map(_is_operand, args)):
        context.refuse("an array and another object")
    if function in _IN_PLACE:
        target = args[0]
        ufunc = _IN_PLACE[function]
        if isinstance(target, SequenceVariable) and target.kind is list:
            context.refuse("a list that it extends")
        if not isinstance(target, ArrayVariable) or target.is_scalar:
            return call_ufunc(frame, ufunc, args, {})
        if ufunc is np.matmul:
            context.refuse("arrays in place")
        return context.store(target, computed(context, ufunc, args)[0])
    if function not in _OPERATORS:
        context.refuse("arrays")
    if function is operator.pow and _is_square_of_bools(args):
        return call_ufunc(frame, np.square, args[:1], {})
    return call_ufunc(frame, _OPERATORS[function], args, {})


def _is_square_of_bools(args: Sequence[Variable]) -> bool:
    """Whether `x ** 2` is of an array of bools: of these, NumPy's square has another type."""
    array, exponent = args
    if not isinstance(array, ArrayVariable) or array.is_scalar or dtype_of(array).kind != "b":
        return False
    return isinstance(exponent, Known) and type(exponent.value) is int and exponent.value == 2


def _is_operand(value: Variable) -> bool:
    if isinstance(value, Known):
        kind = type(value.value)
        return kind in _OPERAND_KINDS or kind.__module__ == "numpy"
    if isinstance(value, SequenceVariable):
        return value.kind in (list, tuple)
    return isinstance(value, ArrayVariable | SymbolVariable)
