"""External calls made from Python: what nothing else can make, and what raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch._C import Argument

from plait_cpp_codegen.external.schemas import overload_of
from plait_ir_lowering import (
    Device,
    DType,
    ExternArg,
    ExternList,
    IndexExpr,
    TensorRef,
    to_torch_dtype,
)
from plait_scheduler import CallExtern, Program


class PythonCalls:
    """The external calls of a program, by their number among its steps.

    The native runtime calls this without grad mode and autocast, with one tensor for each
    of `tensors_of(call)`; it gives the results as a flat tuple, None where there is none,
    and raises what the operator raises.
    """

    def __init__(self, program: Program) -> None:
        self._calls = tuple(step for step in program.steps if isinstance(step, CallExtern))

    def __call__(self, index: int, *tensors: Tensor) -> tuple[Tensor | None, ...]:
        call = self._calls[index]
        overload = overload_of(call)
        given = iter(tensors)
        positional: list[object] = []
        named: dict[str, object] = {}
        values = iter(call.args)
        for argument in overload._schema.arguments:
            value = next(given) if argument.is_out else _value(next(values), argument, given)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        made = overload(*positional, **named)
        if call.out_variant:
            return ()
        return tuple(_plain(result) for result in _flat(made))


def _value(arg: ExternArg, argument: Argument, tensors: Iterator[Tensor]) -> object:
    match arg:
        case TensorRef():
            return next(tensors)
        case ExternList(items):
            return [_value(item, argument, tensors) for item in items]
        case DType():
            return to_torch_dtype(arg)
        case Device():
            return torch.device(str(arg))
        case IndexExpr():
            return arg.as_int()
        case str() if "Layout" in str(argument.real_type) or "Memory" in str(argument.real_type):
            return getattr(torch, arg.removeprefix("torch."))
    return arg


def _flat(made: object) -> Iterator[Tensor | None]:
    if made is None or isinstance(made, Tensor):
        yield made
    else:
        for item in cast("list[object]", made):
            yield from _flat(item)


def _plain(result: Tensor | None) -> Tensor | None:
    """The tensor without what DLPack cannot say: deferred conjugation and negation."""
    return None if result is None else result.detach().resolve_conj().resolve_neg()
