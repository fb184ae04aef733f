"""External calls: what has no rule of its own is called as torch ships it, and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.ir.graph import (
    Device,
    ExternArg,
    ExternCall,
    ExternList,
    Graph,
)
from plait_ir_lowering.ir.index import as_index
from plait_ir_lowering.registry import Lowered, full_arguments
from plait_ir_lowering.tensors import TensorExpr
from plait_ir_lowering.torch_types import from_torch_dtype
from plait_utils.checks import CHECK, MESSAGE
from plait_utils.collectives import is_collective

Environment = Callable[[fx.Node], Lowered]


def lower_external(ctx: LoweringContext, tensors: Environment) -> Lowered:
    """The current node as a call of the op itself.

    Raises LoweringError where the op views or mutates, or an argument or result cannot
    be expressed.
    """
    node = ctx.current
    op = node.target
    if not isinstance(op, OpOverload):
        raise ctx.error("it is not an operator overload")
    if is_collective(op):  # a tensor of the program's over the same memory has another storage
        raise ctx.error("a collective is waited for by its tensor, which a program does not keep")
    results = node.meta["val"]
    if any(argument.alias_info is not None for argument in op._schema.arguments):
        op = _copying(ctx, op)  # what follows takes it for the view: it has that one's strides
    arguments = full_arguments(op, node.args, node.kwargs)
    op, arguments = _as_torch_checks(_taking_numbers(op, arguments), arguments)
    schema = op._schema
    args = tuple(_argument(ctx, value, tensors) for value in arguments)
    single = isinstance(results, torch.Tensor)
    fakes = [results] if single else [_or_empty(each, node) for each in results]
    if not all(isinstance(fake, torch.Tensor) for fake in fakes):
        raise ctx.error("a result that is not a tensor has no external form here")
    call = ExternCall(schema.name, schema.overload_name, args)
    made = ctx.define_buffers(call, fakes)
    return made[0] if single else made


def _as_torch_checks(op: OpOverload, arguments: list[Any]) -> tuple[OpOverload, list[Any]]:
    """A check of the CPU by torch's own operator, which no Python runs for.

    Its error says by its text that it is one.
    """
    if op is not CHECK or arguments[0].meta["val"].device.type != "cpu":
        return op, arguments
    condition = arguments[0]
    return torch.ops.aten._functional_assert_async.msg, [condition, MESSAGE, condition]


def _or_empty(result: Any, node: fx.Node) -> Any:
    """A tensor without elements for what nobody reads: one that the call does not compute, or a
    number, which the trace knows."""
    if not (result is None or isinstance(result, int | torch.SymInt)):
        return result
    tensors = [argument.meta["val"] for argument in node.all_input_nodes]
    return torch.empty(0, dtype=tensors[0].dtype, device=tensors[0].device)


def _taking_numbers(op: OpOverload, arguments: Sequence[Any]) -> OpOverload:
    """The overload with numbers where numbers are given for tensors, as for `z * 2`."""
    wanted = [
        "number" if type(given) in (bool, int, float, complex) and kind == "Tensor" else kind
        for given, kind in zip(arguments, _kinds(op), strict=True)
    ]
    if wanted == _kinds(op):
        return op
    scalar = getattr(op.overloadpacket, "Scalar", None)
    return scalar if isinstance(scalar, OpOverload) and _kinds(scalar) == wanted else op


def _kinds(op: OpOverload) -> list[str]:
    return [str(argument.real_type) for argument in op._schema.arguments if not argument.is_out]


def _copying(ctx: LoweringContext, op: OpOverload) -> OpOverload:
    """The op that copies what a view shows, such as `unfold_copy` for `unfold`."""
    schema = op._schema
    mutates = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    packet = getattr(torch.ops.aten, f"{schema.name.removeprefix('aten::')}_copy", None)
    copying = getattr(packet, schema.overload_name or "default", None)
    # as_strided reads storage beyond its operand, which a new buffer does not have
    if mutates or op is torch.ops.aten.as_strided.default or not isinstance(copying, OpOverload):
        raise ctx.error("an operator that views or mutates has no external form here")
    return copying


def _argument(ctx: LoweringContext, value: Any, tensors: Environment) -> ExternArg:
    match value:
        case fx.Node():
            tensor = tensors(value)
            if not isinstance(tensor, TensorExpr):
                raise ctx.error(f"{value.name} is not a tensor")
            return ctx.realize(tensor, value.meta["val"])
        case None | bool() | int() | float() | complex() | str():
            return value
        case torch.SymInt():
            return as_index(value)
        case torch.SymFloat():  # a constant of the program, which is right for these sizes
            return float(value)
        case torch.dtype():
            try:
                return from_torch_dtype(value)
            except KeyError:
                raise ctx.error(f"the loop IR has no {value}") from None
        case torch.device():
            return Device(value.type, value.index)
        case torch.memory_format() | torch.layout():
            return str(value).removeprefix("torch.")
        case list() | tuple():
            return ExternList(tuple(_argument(ctx, item, tensors) for item in value))
    raise ctx.error(f"an argument of type {type(value).__name__} has no external form here")


def external_ops(graph: Graph) -> dict[str, int]:
    """How often each external op is called, by qualified name."""
    found: dict[str, int] = {}
    for definition in graph.definitions:
        if isinstance(definition.body, ExternCall):
            body = definition.body
            name = f"{body.op}.{body.overload}" if body.overload else body.op
            found[name] = found.get(name, 0) + 1
    return found
