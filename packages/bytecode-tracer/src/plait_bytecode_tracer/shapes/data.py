"""Numbers and sizes that depend on data: symbols whose values only the graph's run gives."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.graph.checks import can_check
from plait_bytecode_tracer.shapes.arithmetic import call_symbolic
from plait_bytecode_tracer.shapes.read_ints import known_read, note_read, stays_open
from plait_bytecode_tracer.shapes.reads import number_before
from plait_bytecode_tracer.values.variables import (
    FunctionVariable,
    Known,
    SequenceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

_CHECKED = frozenset(
    {
        *("split", "split_with_sizes", "view", "reshape", "narrow", "matmul", "mm", "bmm"),
        *("linear", "unflatten", "addmm", "dot", "mv"),
    }
)
"""Operators that raise, when they run, where what was assumed of their sizes does not hold."""


def number_in(frame: Frame, tensor: TensorVariable, reader: str) -> Variable | None:
    """`tensor.item()` or its like as a symbolic number; None where it cannot be one."""
    state = frame.state
    fake = tensor.fake
    if fake.is_complex() or (fake.requires_grad and reader not in ("item", "tolist")):
        return None  # `float` and `int` of what needs gradients warn
    before = number_before(state, tensor) if _may_read(state, fake) else None
    if before is not None:
        return _as_read(before, reader)
    is_float, is_bool = fake.is_floating_point(), fake.dtype is torch.bool
    policy = state.policy
    if not (policy.data_dependent or (policy.data_floats and is_float)):
        return None
    if reader == "tolist" and fake.dim() == 1 and isinstance(fake.shape[0], int):
        return _read(state, "tolist", tensor) if policy.data_dependent else None
    if fake.numel() != 1 or fake.dtype is torch.uint64:
        return None
    if reader in ("item", "tolist") or reader == ("float" if is_float else "int"):
        if is_bool and reader == "int":
            return None
        return _nested(_read(state, "item", tensor), fake.dim() if reader == "tolist" else 0)
    if reader == "index" and not (is_float or is_bool):
        return _read(state, "item", tensor)
    if reader in ("float", "int") and not is_bool:
        function: Any = float if reader == "float" else int
        return call_symbolic(function, [_read(state, "item", tensor)], {})
    return None


def open_integer(state: TraceState, tensor: TensorVariable, reader: str) -> Variable | None:
    """An integer that is read from a tensor of one element, or a list of some, as symbols; None
    where a value is needed, or what would be assumed of them cannot be checked."""
    place = stays_open(state, tensor, reader)
    if place is None:
        return None
    before = number_before(state, tensor)
    if before is not None:
        return _as_read(before, reader)
    if not can_check(state):
        return None
    is_list = tensor.fake.numel() != 1
    found = known_read(state, tensor)
    if found is None:
        setattr(tensor.fake, "item_memo", None)  # noqa: B010  # it may have changed unseen
        found = _read(state, "tolist" if is_list else "item", tensor)
        note_read(state, tensor, reader, place, found)
    if is_list and isinstance(found, SequenceVariable):
        return SequenceVariable(list(found.items), list)
    return _nested(found, tensor.fake.dim() if reader == "tolist" else 0)


def _nested(found: Variable, depth: int) -> Variable:
    """An element in as many lists as its tensor has dimensions."""
    for _ in range(depth):
        found = SequenceVariable([found], list)
    return found


def _may_read(state: TraceState, fake: torch.Tensor) -> bool:
    """Whether a number in a tensor may become one of the graph.

    Where sizes are static, each integer is compiled for; floats are passed to what is compiled.
    """
    policy = state.policy
    return policy.data_dependent or (policy.dynamic is not False and fake.is_floating_point())


def _as_read(number: Variable, reader: str) -> Variable | None:
    """What a reader gives of a tensor that holds a number; None where it fails."""
    if reader in ("item", "tolist"):
        return number
    functions: dict[str, Any] = {"float": float, "int": int, "index": operator.index}
    if reader not in functions:
        return None
    if isinstance(number, Known):
        return constant(functions[reader](number.value))
    return call_symbolic(functions[reader], [number], {})


def _read(state: TraceState, method: str, tensor: TensorVariable) -> Variable:
    state.need_symbols()
    node, result = state.emit("call_method", method, [tensor], {})
    return state.tensor_result(node, result)


def depends_on_data(error: Exception) -> bool:
    """Whether an operator failed for want of the values in its inputs."""
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
    )

    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


def check_assumed(state: TraceState, target: Any) -> None:
    """Break before an operator that assumes of data what it would not check when it runs."""
    symbols = state.symbols
    if symbols is None:
        return
    for condition in symbols.new_assumptions():
        if state.policy.data_sizes and all(each.is_integer for each in condition.free_symbols):
            continue
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        if name.strip("_") not in (*_CHECKED, "check", "check_number") and not _is_size(condition):
            reason = f"{name} is sure to work only if {condition}, which depends on data"
            raise TraceBreakError("GB0004", reason)


def _is_size(condition: Any) -> bool:
    """Whether a condition says that a number is not negative, as every size is checked to be."""
    import sympy  # type: ignore[import-untyped]  # it has no types

    if isinstance(condition, sympy.Ge):
        return bool(condition.lhs.is_Symbol and condition.rhs == 0)
    return bool(isinstance(condition, sympy.Le) and condition.rhs.is_Symbol and condition.lhs == 0)


def check(frame: Frame, args: list[Variable]) -> Variable | None:
    """`torch._check(condition, message)`; None where it is called as it is, or raises."""
    condition = args[0]
    if isinstance(condition, Known):
        return constant(None) if condition.value is True else None
    if not isinstance(condition, SymbolVariable) or condition.kind is not bool:
        return None
    if condition.hint is not None:
        return constant(None) if condition.owner.decide(condition) else None
    if any(isinstance(arg, FunctionVariable) for arg in args[1:]):
        raise TraceBreakError("GB0004", "torch._check with a message of the traced code")
    mutates = frame.state.mutates_tensors
    frame.state.emit("call_function", torch._check, args, {})
    frame.state.mutates_tensors = mutates
    return constant(None)
