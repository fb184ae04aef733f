"""ATen graphs as text: one line for each node, with types and the user's lines."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument, Target

from plait_fx_passes.aten_graph import (
    AtenGraph,
    AttributeInput,
    Computed,
    ConstantInput,
    Detached,
    Geometry,
    InputItself,
    InputView,
    OutputSource,
    Repeated,
    ResultView,
    SyntheticBase,
)

_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def format_dtype(dtype: torch.dtype) -> str:
    """``f32``, ``i64`` ...; torch's own name for the rare ones."""
    return _DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def format_value(value: object) -> str:
    """``f32[2, 3]`` for a contiguous fake tensor, with strides otherwise; tuples in parentheses."""
    if isinstance(value, torch.Tensor):
        text = f"{format_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
        if not value.is_contiguous():
            text += f"{{{', '.join(map(str, value.stride()))}}}"
        return text if value.device.type == "cpu" else f"{text} {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(format_value(each) for each in value)})"
    if isinstance(value, torch.SymFloat):
        return "number"
    return "none" if value is None else type(value).__name__


def format_argument(argument: object) -> str:
    """A node's argument: ``%name`` for nodes, Python text for the rest."""
    if isinstance(argument, fx.Node):
        return f"%{argument.name}"
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(format_argument(each) for each in argument)}]"
    if isinstance(argument, torch.dtype):
        return format_dtype(argument)
    return str(argument) if isinstance(argument, torch.device) else repr(argument)


def format_target(target: Callable[..., object] | str) -> str:
    """``aten.add.Tensor``; ``.default`` is left out."""
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, OpOverload):
        return str(target).removesuffix(".default")
    return str(target)


def format_node(node: fx.Node) -> str:
    """``%add: f32[2, 3] = aten.add.Tensor(%x, 1)  # model.py:7``."""
    text = format_call(
        node.name, node.op, node.target, node.args, node.kwargs, node.meta.get("val")
    )
    line = None if node.op == "output" else node.meta.get("source_line")
    return text if line is None else f"{text}  # {line}"


def format_call(
    name: str,
    op: str,
    target: Target,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument],
    value: object,
) -> str:
    """A node's text without the user's line."""
    if op == "output":
        return f"return {format_argument(args[0])}"
    head = f"%{name}: {format_value(value)}"
    if op == "placeholder":
        return head
    operands = [format_argument(argument) for argument in args]
    operands += [f"{key}={format_argument(each)}" for key, each in kwargs.items()]
    return f"{head} = {format_target(target)}({', '.join(operands)})"


def print_aten(graph: AtenGraph) -> str:
    """The graph, its inputs' sources, its outputs and its mutations as text."""
    lines = ["aten_graph {"]
    for node in graph.graph.nodes:
        text = f"  {format_node(node)}"
        if node.op == "placeholder":
            text = f"  input {format_node(node)}"
        lines.append(text)
    names = [node.name for node in graph.placeholders]
    for name, source in zip(names, graph.inputs, strict=False):
        if isinstance(source, (AttributeInput, ConstantInput)):
            kind = "attribute" if isinstance(source, AttributeInput) else "constant"
            lines.append(f"  where %{name} is {kind} {source.name!r}")
        elif isinstance(source, SyntheticBase):
            lines.append(
                f"  where %{name} is {source.numel} elements of %{names[source.of]}'s storage"
            )
    if not all(isinstance(each, Computed) and not each.is_number for each in graph.outputs):
        lines += [
            f"  output {index} is {_format_output(source, names)}"
            for index, source in enumerate(graph.outputs)
        ]
    lines += [f"  copy result {m.result} into %{names[m.input]}" for m in graph.mutations]
    lines += [
        f"  restride %{names[m.input]} to {_format_geometry(m.geometry)}"
        for m in graph.metadata_mutations
    ]
    lines += [f"  count %{names[index]} as changed" for index in graph.counted]
    return "\n".join([*lines, "}"])


def _format_output(source: OutputSource, names: list[str]) -> str:
    if isinstance(source, Computed):
        return f"{'the number in ' if source.is_number else ''}result {source.result}"
    if isinstance(source, InputItself):
        return f"%{names[source.input]} itself"
    if isinstance(source, InputView):
        kind = "a view" if source.detached is Detached.NOT else "a detached view"
        when = ", taken before it is written" if source.is_early else ""
        return f"{kind} of %{names[source.input]}{when}: {_format_geometry(source.geometry)}"
    if isinstance(source, ResultView):
        return f"a view of result {source.result}: {_format_geometry(source.geometry)}"
    if isinstance(source, Repeated):
        return f"output {source.output} itself"
    return f"the value {source.value!r}"


def _format_geometry(geometry: Geometry) -> str:
    size, stride = list(geometry.size), list(geometry.stride)
    return f"{format_dtype(geometry.dtype)}{size} strides {stride} offset {geometry.offset}"
