"""Why sorts and what selects from rows are calls on GPUs, for the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import mul
from types import MappingProxyType

from plait_ir_lowering.ir.graph import Buffer, ExternArg, ExternCall, Graph, TensorRef
from plait_ir_lowering.ir.index import ONE, IndexExpr

_ARGUMENTS: Mapping[str, tuple[int | None, int | None]] = MappingProxyType(
    {
        "aten::sort": (1, None),
        "aten::sort.stable": (2, None),
        "aten::topk": (2, 1),
        "aten::kthvalue": (2, 1),
        "aten::median.dim": (1, None),
        "aten::nanmedian.dim": (1, None),
        "aten::median": (None, None),
        "aten::nanmedian": (None, None),
    }
)
"""Which arguments say along which dimension, None where all are one row, and how many elements are
wanted."""
_ALONE = frozenset(("aten::kthvalue", "aten::median.dim", "aten::nanmedian.dim"))
"""What gives one element of each row."""


def sorts_that_are_calls(graph: Graph) -> Iterator[tuple[str, str]]:
    """The first result of each sort or selection that is a call on a GPU, and why it is one."""
    buffers = {buffer.name: buffer for buffer in graph.inputs}
    for definition in graph.definitions:
        buffers |= {buffer.name: buffer for buffer in definition.buffers}
        body = definition.body
        if not isinstance(body, ExternCall) or definition.buffers[0].device.type != "cuda":
            continue
        reason = _reason(body, buffers)
        if reason is not None:
            yield definition.buffers[0].name, reason


def _reason(call: ExternCall, buffers: Mapping[str, Buffer]) -> str | None:
    name = f"{call.op}.{call.overload}" if call.overload else call.op
    if name == "aten::mode":
        return "which of the most frequent elements it gives follows from ATen's threads"
    if name not in _ARGUMENTS or not isinstance(call.args[0], TensorRef):
        return None
    ref = call.args[0]
    buffer = buffers[ref.buffer]
    shape = (ref.view or buffer.layout).size
    along, count = _ARGUMENTS[name]
    axis: int | None = 0
    if along is None:
        shape = (reduce(mul, shape, ONE),)
    else:
        axis = _number(call.args[along])
    kept = None if count is None else _number(call.args[count])
    if axis is None or (count is not None and kept is None):
        return None
    from plait_ir_lowering.rules.sorted_rows import obstacle, obstacle_to_blocks

    element = ref.dtype or buffer.dtype
    if name == "aten::topk":
        found = obstacle_to_blocks(element, shape, axis, kept)
    else:
        found = obstacle(element, shape, axis, kept, alone=name in _ALONE)
    return found or "it is left to torch"


def _number(argument: ExternArg) -> int | None:
    if isinstance(argument, IndexExpr) and argument.is_constant:
        return argument.as_int()
    return argument if isinstance(argument, int) else None
