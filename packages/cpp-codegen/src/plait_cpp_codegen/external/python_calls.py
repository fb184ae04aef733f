"""External calls made from Python: what nothing else can make, and what raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

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
from plait_utils import dataclass

if TYPE_CHECKING:
    from torch._C import Argument

_Caller = Callable[..., object]


class PythonCalls:
    """The external calls of a program, by their number among its steps.

    The native runtime calls this without grad mode and autocast, with one tensor for each
    of `tensors_of(call)` and the sizes that the program finds when it runs; it gives the results
    as a flat tuple, None where there is none, and raises what the operator raises.
    """

    def __init__(self, program: Program) -> None:
        self._calls = tuple(step for step in program.steps if isinstance(step, CallExtern))
        self._symbols = program.symbols
        self._callers: dict[int, _Caller] = {}

    def __call__(self, index: int, *given: Tensor | int) -> tuple[Tensor | None, ...]:
        caller = self._callers.get(index)
        if caller is None:
            caller = self._callers[index] = _caller(self._calls[index], self._symbols)
        made = caller(*given)
        if isinstance(made, Tensor):
            return (_plain(made),)
        return tuple(_plain(result) for result in _flat(made))


def _caller(call: CallExtern, symbols: Sequence[str]) -> _Caller:
    """A function of the call's tensors and of sizes; its other arguments are constants."""
    overload = overload_of(call)
    text = _CallText({"op": overload})
    given = iter(call.args)
    parts = []
    for argument in overload._schema.arguments:
        value = text.tensor() if argument.is_out else text.value(next(given), argument)
        parts.append(f"{argument.name}={value}" if argument.kwarg_only else value)
    names = ", ".join([*(f"t{number}" for number in range(text.tensors)), *symbols])
    made = f"op({', '.join(parts)})"
    if call.out_variant:  # whose results the program has already
        made = f"({made}, ())[1]"
    return cast(_Caller, eval(f"lambda {names}: {made}", text.names))


@dataclass(slots=True)
class _CallText:
    """Arguments as Python text over the tensors t0, t1, ... and named constants."""

    names: dict[str, object]
    tensors: int = 0
    _constants: int = field(default=0)

    def tensor(self) -> str:
        self.tensors += 1
        return f"t{self.tensors - 1}"

    def value(self, arg: ExternArg, argument: Argument) -> str:
        if isinstance(arg, TensorRef):
            return self.tensor()
        if isinstance(arg, ExternList):
            return f"[{', '.join(self.value(item, argument) for item in arg.items)}]"
        if isinstance(arg, IndexExpr):
            return f"({arg})"
        name = f"c{self._constants}"
        self._constants += 1
        self.names[name] = _constant(arg, str(argument.real_type))
        return name


def _constant(arg: ExternArg, kind: str) -> object:
    match arg:
        case DType():
            return to_torch_dtype(arg)
        case Device():
            return torch.device(str(arg))
        case str() if "Layout" in kind or "MemoryFormat" in kind:
            return getattr(torch, arg.removeprefix("torch."))
    return arg


def _flat(made: object) -> Iterator[Tensor | None]:
    """Each result, None for numbers: the program knows them."""
    if isinstance(made, list | tuple):
        for item in made:
            yield from _flat(item)
    else:
        yield made if isinstance(made, Tensor) else None


def _plain(result: Tensor | None) -> Tensor | None:
    """The tensor without what DLPack cannot say: deferred conjugation and negation."""
    if result is None or not (result.is_conj() or result.is_neg()):
        return result
    return result.resolve_conj().resolve_neg()
