"""ATen graph → loop IR: one pass over the nodes, a rule or an external call for each."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

import plait_ir_lowering.rules  # noqa: F401  # registers the rules
from plait_ir_lowering.ahead import feeds_loops
from plait_ir_lowering.alike import Lowering
from plait_ir_lowering.context import LoweringContext, LoweringOptions, constant
from plait_ir_lowering.errors import LoweringError
from plait_ir_lowering.exact import is_exact, tensors_of
from plait_ir_lowering.external import lower_external
from plait_ir_lowering.ir.dtypes import DType
from plait_ir_lowering.ir.graph import (
    Buffer,
    Device,
    Graph,
    Layout,
    OutputRef,
    Pointwise,
    TensorRef,
)
from plait_ir_lowering.ir.index import OpenSizeError, as_index
from plait_ir_lowering.ir.open_sizes import has_learned, settle
from plait_ir_lowering.ir.ops import TypeMismatchError
from plait_ir_lowering.ir.values import Load, Op, Value
from plait_ir_lowering.registry import (
    Lowered,
    asks_ahead,
    full_arguments,
    kind_of,
    rule_of,
)
from plait_ir_lowering.tensors import NumberExpr, TensorExpr, dimensions
from plait_ir_lowering.torch_types import from_torch_device

_ROUNDS = 8
"""How often a graph is lowered at most."""

_ARITHMETIC: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.neg: "neg",
}
"""What is computed of numbers that each call gives."""

_CHOICES: dict[Any, str] = {max: "gt", min: "lt"}
"""How Python's `max` and `min` compare the second number with the first, to take it."""


def lower(
    aten_graph: fx.Graph | fx.GraphModule,
    *,
    options: LoweringOptions | None = None,
    name: str = "main",
    mutations: Mapping[int, int] | None = None,
) -> Graph:
    """The loop IR of a functional, flat ATen graph.

    Nodes need fake tensors in `meta["val"]`; `meta["source_line"]`, where present, goes
    into origins and errors. A placeholder whose value is a `SymFloat` is a number that each
    call gives: a buffer of one f64 in memory of the CPU. `mutations` are results, by position,
    that are not handed out but written over an input at the end, each with the position of that
    input. Raises LoweringError, naming the node and the user's line.

    Rules may ask the environment of symbolic sizes for more than it knew: the graph is then lowered
    again, for sizes that are what it knows now from the first node to the last.
    """
    graph = aten_graph.graph if isinstance(aten_graph, fx.GraphModule) else aten_graph
    environment = _environment(graph)
    for _ in range(_ROUNDS):
        if environment is not None:
            settle(environment)
        made = _lowered(graph, options, name, mutations)
        if environment is None or not has_learned(environment):
            return made
    raise LoweringError(f"more is asked of its sizes each time that {name} is lowered")


def _environment(graph: fx.Graph) -> Any:
    """The environment of a graph's symbolic sizes; None where all are numbers."""
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and value._has_symbolic_sizes_strides:
            for number in (*value.shape, *value.stride()):
                if isinstance(number, torch.SymInt):
                    return number.node.shape_env
    return None


def _lowered(
    graph: fx.Graph,
    options: LoweringOptions | None,
    name: str,
    mutations: Mapping[int, int] | None,
) -> Graph:
    ctx = LoweringContext(options or LoweringOptions())
    calls = Lowering(ctx, _lower_call, _looking_ahead)
    inputs: list[Buffer] = []
    outputs: tuple[OutputRef, ...] = ()
    written: tuple[tuple[str, TensorRef], ...] = ()
    for node in graph.nodes:
        ctx.node = node
        if node.op == "placeholder":
            calls.place(node, _input(ctx, node, inputs))
        elif node.op == "call_function":
            calls.lower(node)
        elif node.op == "output":
            given = frozenset(buffer.name for buffer in inputs)
            results = [_output(ctx, result, calls, given) for result in node.args[0]]
            outputs, written = _without_written(results, mutations or {}, inputs)
        else:
            raise ctx.error(f"a {node.op} node has no place in an ATen graph")
    return Graph(name, tuple(inputs), tuple(ctx.definitions), outputs, written)


def _without_written(
    results: Sequence[OutputRef], mutations: Mapping[int, int], inputs: Sequence[Buffer]
) -> tuple[tuple[OutputRef, ...], tuple[tuple[str, TensorRef], ...]]:
    """What is handed out, and what is written over inputs."""
    written: list[tuple[str, TensorRef]] = []
    for result, target in mutations.items():
        ref = results[result]
        if not isinstance(ref, TensorRef):
            raise ValueError(f"result {result} is to be written to an input, and is no tensor")
        written.append((inputs[target].name, ref))
    outputs = tuple(ref for place, ref in enumerate(results) if place not in mutations)
    return outputs, tuple(written)


def _input(ctx: LoweringContext, node: fx.Node, inputs: list[Buffer]) -> TensorExpr | NumberExpr:
    fake = node.meta["val"]
    if isinstance(fake, torch.SymFloat):
        number = Buffer(ctx.fresh_name(node.name), DType.f64, Device("cpu"), Layout.of([]))
        ctx.buffers[number.name] = number
        inputs.append(number)
        return NumberExpr(Load(number.name, (), DType.f64))
    if not isinstance(fake, torch.Tensor):
        raise ctx.error("inputs that are not tensors are not lowered yet")
    layout = Layout.of(list(fake.shape), list(fake.stride()))
    device = from_torch_device(fake.device)
    buffer = Buffer(ctx.fresh_name(node.name), ctx.dtype_of(fake), device, layout)
    ctx.buffers[buffer.name] = buffer
    ctx.storage_offsets[buffer.name] = as_index(fake.storage_offset())
    inputs.append(buffer)
    return ctx.load(buffer)


def _looking_ahead(node: fx.Node) -> bool | None:
    """What the rule of a node asks of the uses of its result."""
    if not isinstance(node.target, OpOverload) or not asks_ahead(node.target):
        return None
    return feeds_loops(node)


def _lower_call(ctx: LoweringContext, node: fx.Node, known: Mapping[fx.Node, Lowered]) -> Lowered:
    """What one call gives, of what its arguments were lowered to."""
    if node.target in _ARITHMETIC:
        operands = [_number(ctx, each, known) for each in node.args]
        return NumberExpr(Op(_ARITHMETIC[node.target], operands))
    if node.target in _CHOICES:
        first, second = (_number(ctx, each, known) for each in node.args)
        is_second = Op(_CHOICES[node.target], [second, first])
        return NumberExpr(Op("where", [is_second, second, first]))
    if not isinstance(node.target, OpOverload):
        raise ctx.error("it is not an ATen operator")
    rule = rule_of(node.target)
    if rule is not None and _computes_as_asked(ctx, node):
        arguments = full_arguments(node.target, node.args, node.kwargs)
        made = ctx.mark()
        try:
            lowered = rule(ctx, *[_resolve(argument, known) for argument in arguments])
        except (TypeMismatchError, OpenSizeError):
            # Dtypes that the loops do not compute with, or a rule that needs a size as a number.
            lowered = None
        if lowered is not None:
            return lowered
        ctx.rewind(made)
    return lower_external(ctx, known.__getitem__)


def _computes_as_asked(ctx: LoweringContext, node: fx.Node) -> bool:
    """Whether loops may compute a call that has a rule."""
    return (not ctx.options.exact or is_exact(node)) and not _is_complex_elsewhere(node)


def _is_complex_elsewhere(node: fx.Node) -> bool:
    """Whether it computes with complex numbers on a device whose kernels do not."""
    if kind_of(node.target) == "view":  # type: ignore[arg-type]  # overloads alone have rules
        return False
    return any(each.is_complex() and each.device.type != "cpu" for each in tensors_of(node))


def _number(ctx: LoweringContext, operand: Any, known: Mapping[fx.Node, Lowered]) -> Value:
    found = known[operand] if isinstance(operand, fx.Node) else operand
    if not isinstance(found, NumberExpr | int | float):
        raise ctx.error("it computes with what is no number")
    return constant(found, DType.f64)


def _resolve(argument: Any, known: Mapping[fx.Node, Lowered]) -> Any:
    if isinstance(argument, fx.Node):
        return known[argument]
    if isinstance(argument, list | tuple):
        return [_resolve(item, known) for item in argument]
    return argument


def _output(ctx: LoweringContext, result: Any, calls: Lowering, given: frozenset[str]) -> OutputRef:
    """What is handed out for a result; never the memory of an input, whose names are `given`."""
    if not isinstance(result, fx.Node):
        if result is None or isinstance(result, bool | int | float):
            return result
        raise ctx.error(f"an output of type {type(result).__name__} is not lowered")
    tensor = calls.tensor(result)
    fake = result.meta["val"]
    if not isinstance(tensor, TensorExpr):
        raise ctx.error(f"output {result.name} is not a tensor")
    ctx.node = result
    wanted = Layout.of(list(fake.shape), list(fake.stride()))
    ref = tensor.ref
    if ref is not None and ref.buffer not in given:
        layout = ref.view or ctx.buffers[ref.buffer].layout
        if layout.size == wanted.size and layout.stride == wanted.stride:
            return ref
    dims = dimensions(tensor.shape)
    return _copied(ctx, tensor, dims, fake)


def _copied(ctx: LoweringContext, tensor: TensorExpr, dims: Any, fake: torch.Tensor) -> TensorRef:
    made = ctx.define(Pointwise(dims, tensor.at([d.expr for d in dims])), fake)
    if made.ref is None:
        raise RuntimeError("a buffer without a reference")
    return made.ref
