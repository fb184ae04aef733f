"""Marks for compilers: `torch.compiler.disable`, what torch itself leaves out, graph breaks."""

from __future__ import annotations

import types
from typing import Any

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import TORCH_FOLDER, Frame, constant
from plait_bytecode_tracer.rules.registry import named_rule
from plait_bytecode_tracer.values.lookup import is_compiled_by_torch
from plait_bytecode_tracer.values.plain import is_empty
from plait_bytecode_tracer.values.variables import Known, Variable

_MARKS = TORCH_FOLDER + "_dynamo"


def refuse_marked(code: types.CodeType) -> None:
    """Break at a wrapper of torch's own compiler that a call has made."""
    if code.co_filename.startswith(_MARKS):
        raise TraceBreakError("GB0002", f"a call of {code.co_name}, which torch's compiler made")


def call_marked(
    frame: Frame, function: types.FunctionType, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable | None:
    """A call of a function of torch's own compiler: a mark, or a wrapper; None if it is neither."""
    if not function.__code__.co_filename.startswith(_MARKS):
        return None
    if function.__name__ == "graph_break":
        return constant(None)
    cells: dict[str, Any] = dict(
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    )
    compiled = is_compiled_by_torch(function)
    marked = compiled or function.__code__.co_name == "_fn"
    if not marked or "fn" not in cells or is_empty(cells["fn"]):
        return None
    wrapped = cells["fn"].cell_contents
    if compiled:  # as a part of what calls it
        return frame.call(Known(wrapped), args, kwargs)
    if (getattr(wrapped, "__module__", None) or "").split(".")[0] == "torch":
        return frame.call(Known(wrapped), args, kwargs)
    name = getattr(wrapped, "__qualname__", type(wrapped).__name__)
    raise TraceBreakError("GB0002", f"a call of {name}, which torch.compiler.disable leaves out")


@named_rule("torch._dynamo.mutation_guard", "GenerationTracker.tag")
def tag_module(frame: Frame, tracker: Variable, module: Variable) -> Variable:
    """Torch's compiler notes which modules are made while it traces; it does not trace this call.

    From its first use on, `torch.nn.Module.__init__` is a function that calls the one before it,
    and then this.
    """
    return constant(None)
