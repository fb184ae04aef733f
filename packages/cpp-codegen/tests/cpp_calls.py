"""Programs that are external calls and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from cpp_graphs import CPU, buffer
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from plait_cpp_codegen import Executable, build
from plait_ir_lowering import (
    Buffer,
    Definition,
    Device,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
    TensorRef,
    from_torch_dtype,
)
from plait_scheduler import schedule, verify_program


@dataclass(frozen=True)
class Call:
    """A call of an operator with real arguments; of an out variant, without the outs."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, *outs: Tensor) -> list[Tensor | None]:
        """What eager gives, flat."""
        names = [a.name for a in self.op._schema.arguments if a.is_out]
        with torch.no_grad():
            made = self.op(*self.args, **self.kwargs, **dict(zip(names, outs, strict=True)))
        return list(flat(made))

    def inputs(self) -> list[Tensor]:
        return [item for item in flat((self.args, self.kwargs)) if isinstance(item, Tensor)]


def call(op: OpOverload, *args: Any, **kwargs: Any) -> Call:
    return Call(op, args, kwargs)


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif isinstance(value, dict):
        yield from flat(list(value.values()))
    else:
        yield value


def extern_graph(calls: Sequence[Call], results: Sequence[Sequence[Tensor | None]]) -> Graph:
    """A graph of these calls, whose results have the layouts of `results`."""
    inputs: list[Buffer] = []
    definitions: list[Definition] = []
    outputs: list[TensorRef] = []

    def argument(value: Any) -> ExternArg:
        match value:
            case Tensor():
                inputs.append(buffer(f"x{len(inputs)}", value))
                return TensorRef(inputs[-1].name)
            case torch.dtype():
                return from_torch_dtype(value)
            case torch.device():
                return Device(value.type, value.index)
            case torch.memory_format() | torch.layout():
                return str(value).removeprefix("torch.")
            case list() | tuple():
                return ExternList(tuple(argument(item) for item in value))
        return value

    for number, (made, found) in enumerate(zip(calls, results, strict=True)):
        schema = made.op._schema
        given = dict(zip((a.name for a in schema.arguments), made.args, strict=False))
        given |= made.kwargs
        args = tuple(
            argument(given.get(a.name, a.default_value)) for a in schema.arguments if not a.is_out
        )
        outs = any(a.is_out for a in schema.arguments)
        buffers = tuple(
            buffer(f"y{number}_{position}", tensor)
            for position, tensor in enumerate(found)
            if tensor is not None
        )
        body = ExternCall(schema.name, schema.overload_name, args, out_variant=outs)
        definitions.append(Definition(buffers, body))
        outputs += [TensorRef(b.name) for b in buffers]
    return Graph("calls", tuple(inputs), tuple(definitions), tuple(outputs))


def native(
    calls: Sequence[Call], results: Sequence[Sequence[Tensor | None]] | None = None
) -> Executable:
    """The C++ program of these calls."""
    graph = extern_graph(calls, [made() for made in calls] if results is None else results)
    program = schedule(graph)
    verify_program(program)
    executable = build(program)
    assert executable.fallback_reason is None, executable.fallback_reason
    return executable


def run(executable: Executable, calls: Sequence[Call]) -> list[Tensor]:
    return list(executable(*[tensor for made in calls for tensor in made.inputs()]))


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Fails unless both are equal in value, type and layout."""
    assert actual.dtype is expected.dtype
    assert actual.shape == expected.shape
    if expected.numel():
        assert actual.stride() == expected.stride()
    if expected.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        actual, expected = actual.view(torch.uint8), expected.view(torch.uint8)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


class Recorder(TorchDispatchMode):
    """Notes the ATen calls that run under it: functional ones on CPU tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = Call(func, tuple(args), dict(kwargs or {}))
        result = func(*made.args, **made.kwargs)
        if _is_functional(func) and _is_plain([*made.inputs(), *flat(result)]):
            self.calls.append(made)
        return result


def _is_functional(op: OpOverload) -> bool:
    schema = op._schema
    return not any(a.alias_info for a in (*schema.arguments, *schema.returns))


def _is_plain(values: Sequence[Any]) -> bool:
    tensors = [value for value in values if value is not None]
    return len(tensors) > 0 and all(
        type(t) is Tensor and t.layout is torch.strided and t.device == torch.device(str(CPU))
        for t in tensors
    )
