"""Patterns as expression trees, traced from the plain Python functions that they are written in."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias, cast

import torch
from torch._ops import OpOverload

from plait_fx_passes.errors import PatternError
from plait_fx_passes.op_info import has_composite_kernel
from plait_utils import dataclass

aten = torch.ops.aten


class Kind(Enum):
    """What a wildcard stands for."""

    TENSOR = "tensor"
    TENSORS = "tensors"
    SCALAR = "scalar"
    ANYTHING = "anything"


class Tensors:
    """Annotates a pattern's parameter that stands for a run of tensors in a list, also for none.

    It is a list: `cat(xs, 0)` takes all parts of a `cat`, `cat([x, *xs], 0)` all behind the first.
    """


class Scalar:
    """Annotates a pattern's parameter that stands for a Python number."""


class Anything:
    """Annotates a pattern's parameter that stands for any argument but a tensor: sizes, dtypes."""


class _Recorded:
    """Records the calls of operators that it is an argument of."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return _call(_overload(func), args, kwargs or {})


@dataclass(frozen=True, slots=True)
class Wildcard(_Recorded):
    """A parameter of the pattern; the same one must match the same thing everywhere."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an overload; ``arguments`` in schema order, defaults filled in."""

    target: OpOverload
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One result of a call that returns several."""

    call: Call
    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument that must be exactly this value, of this type."""

    value: object


Expression: TypeAlias = Wildcard | Call | Part | Constant | tuple["Expression", ...]


class Term(_Recorded):
    """A tensor of a pattern while its function runs."""

    __slots__ = ("expression",)

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def __getitem__(self, index: object) -> Term:
        if isinstance(self.expression, Call) and isinstance(index, int):
            return Term(Part(self.expression, index))
        raise PatternError(
            "a pattern may index only the results of an operator with several",
            hint="write aten.select or aten.slice",
        )

    def __iter__(self) -> Any:
        if not isinstance(self.expression, Call):
            raise PatternError("a pattern cannot iterate over a tensor")
        returns = len(self.expression.target._schema.returns)
        return iter([self[index] for index in range(returns)])

    def __neg__(self) -> object:
        return _call(aten.neg.default, (self,), {})

    def __add__(self, other: object) -> object:
        return _call(aten.add.Tensor, (self, other), {})

    def __sub__(self, other: object) -> object:
        return _call(aten.sub.Tensor, (self, other), {})

    def __mul__(self, other: object) -> object:
        return _call(aten.mul.Tensor, (self, other), {})

    def __truediv__(self, other: object) -> object:
        return _call(aten.div.Tensor, (self, other), {})

    def __pow__(self, other: object) -> object:
        return _call(aten.pow.Tensor_Scalar, (self, other), {})

    __radd__ = __add__
    __rmul__ = __mul__


# torch functions whose default overload is not the one that tensors meet.
_OVERLOADS: dict[object, OpOverload] = {
    torch.add: aten.add.Tensor,
    torch.sub: aten.sub.Tensor,
    torch.mul: aten.mul.Tensor,
    torch.div: aten.div.Tensor,
    torch.where: aten.where.self,
    torch.permute: aten.permute.default,
    operator.getitem: aten.select.int,
}


def _overload(func: Callable[..., object]) -> OpOverload:
    if isinstance(func, OpOverload):
        return func
    known = _OVERLOADS.get(func)
    if known is not None:
        return known
    name = getattr(func, "__name__", "")
    packet = getattr(aten, name, None)
    overload = getattr(packet, "default", None)
    if isinstance(overload, OpOverload) and not has_composite_kernel(overload):
        return overload
    raise PatternError(
        f"{name or func!r} is not one operator of the ATen vocabulary",
        hint="call the overload itself, as in torch.ops.aten.add.Tensor(x, y)",
    )


def _call(target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    bound = bind_arguments(target, args, kwargs)
    call = Call(target, tuple(_expression(value) for value in bound))
    return Term(call)


def _expression(value: object) -> Expression:
    if isinstance(value, Term):
        return value.expression
    if isinstance(value, (Wildcard, Call, Part, Constant)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_expression(each) for each in value)
    if isinstance(value, torch.Tensor):
        raise PatternError(
            "a pattern holds a tensor, which is no value that a graph's arguments can equal",
            hint="make it a parameter, or an operator with one: aten.full.default(size, 1.0)",
        )
    return Constant(value)


def bind_arguments(
    target: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[object, ...]:
    """The call's arguments in schema order, with defaults for those not given.

    Raises:
        PatternError: too many arguments, one missing, or an unknown name.
    """
    schema = target._schema.arguments
    names = [argument.name for argument in schema]
    unknown = sorted(set(kwargs) - set(names))
    if len(args) > len(schema) or unknown:
        raise PatternError(f"{target} does not take these arguments: {unknown or list(args)}")
    bound: list[object] = []
    for position, argument in enumerate(schema):
        if position < len(args):
            bound.append(args[position])
        elif argument.name in kwargs:
            bound.append(kwargs[argument.name])
        elif argument.has_default_value():
            bound.append(argument.default_value)
        else:
            raise PatternError(f"{target} needs its argument {argument.name!r}")
    return tuple(bound)


_KINDS = {Scalar: Kind.SCALAR, Anything: Kind.ANYTHING, Tensors: Kind.TENSORS}


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a pattern function says: its parameters, and an expression for each of its results."""

    wildcards: tuple[Wildcard, ...]
    results: tuple[Call | Part, ...]

    @property
    def anchor(self) -> OpOverload:
        """The operator of the first result, whose calls are tried."""
        first = self.results[0]
        return (first.call if isinstance(first, Part) else first).target


def trace_pattern(function: Callable[..., object]) -> Pattern:
    """The wildcards and the expressions of a pattern function.

    Raises:
        PatternError: the function returns something else than results of operators, one that has no
            tensor in common with those before it, or leaves a parameter unused.
    """
    wildcards: list[Wildcard] = []
    arguments: list[object] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        wildcard = Wildcard(name, _KINDS.get(parameter.annotation, Kind.TENSOR))
        wildcards.append(wildcard)
        arguments.append(_stand_in(wildcard))
    returned = function(*arguments)
    several = isinstance(returned, (list, tuple))
    results = tuple(map(_result_of, cast("Sequence[object]", returned) if several else (returned,)))
    if not results or None in results:
        raise PatternError(
            "the pattern must return the result of an operator of its parameters, or several",
            hint="what has no operator would match everything, a constant no node",
        )
    known: set[Wildcard] = set()
    for expression in cast("tuple[Call | Part, ...]", results):
        here = set(wildcards_of(expression))
        if known and not any(each.kind is Kind.TENSOR for each in known & here):
            raise PatternError("a result of the pattern shares no tensor with those before it")
        known |= here
    unused = [each.name for each in wildcards if each not in known]
    if unused:
        raise PatternError(f"the pattern does not use its parameters {unused}")
    return Pattern(tuple(wildcards), cast("tuple[Call | Part, ...]", results))


def _stand_in(wildcard: Wildcard) -> object:
    """What the pattern's function is called with for a parameter."""
    if wildcard.kind is Kind.TENSOR:
        return Term(wildcard)
    return [Term(wildcard)] if wildcard.kind is Kind.TENSORS else wildcard


def _result_of(value: object) -> Call | Part | None:
    if isinstance(value, Term) and isinstance(value.expression, (Call, Part)):
        return value.expression
    return None


def wildcards_of(expression: Expression) -> list[Wildcard]:
    """Every wildcard in the expression, with repetitions."""
    if isinstance(expression, Wildcard):
        return [expression]
    if isinstance(expression, Call):
        return [w for argument in expression.arguments for w in wildcards_of(argument)]
    if isinstance(expression, Part):
        return wildcards_of(expression.call)
    if isinstance(expression, tuple):
        return [w for each in expression for w in wildcards_of(each)]
    return []
