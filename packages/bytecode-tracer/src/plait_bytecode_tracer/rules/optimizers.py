"""What optimizers and schedulers do around their arithmetic: groups, profiling, wrappers."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.profiler import record_function

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import python_error
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.objects.containers import plain_value
from plait_bytecode_tracer.objects.iteration import elements
from plait_bytecode_tracer.rules.registry import builtin, named_rule
from plait_bytecode_tracer.values.variables import (
    CallVariable,
    DictVariable,
    ObjectVariable,
    SequenceVariable,
    TensorVariable,
    Variable,
)


@builtin(record_function.__init__)
def make_record(
    frame: Frame, owner: Variable, name: Variable, args: Variable | None = None
) -> Variable:
    """Its own Python asks `typing` for a type that only TorchScript wants."""
    if not isinstance(owner, ObjectVariable):
        raise TraceBreakError("GB0002", "record_function that the caller made")
    given = {"name": name, "args": constant(None) if args is None else args}
    owner.attributes.update(given, run_callbacks_on_exit=constant(True), record=constant(None))
    owner.attributes["_cupti_monitor_external_id"] = constant(None)
    return constant(None)


@builtin(record_function.__enter__)
def enter_record(frame: Frame, owner: Variable) -> Variable:
    """Nothing while nobody profiles; a record is made where Python has to leave it."""
    _guard_unprofiled(frame)
    if not isinstance(owner, ObjectVariable):
        raise TraceBreakError("GB0002", "record_function that the caller made")
    enter: Any = torch.ops.profiler._record_function_enter_new
    given = [owner.attributes["name"], owner.attributes["args"]]
    owner.attributes["record"] = CallVariable(enter, given)
    return owner


@builtin(record_function.__exit__)
def leave_record(frame: Frame, owner: Variable, *exception: Variable) -> Variable:
    _guard_unprofiled(frame)
    return constant(None)


def _guard_unprofiled(frame: Frame) -> None:
    profiling: Any = torch._C._autograd._profiler_enabled
    if profiling():
        raise TraceBreakError("GB0002", "record_function under a profiler")
    frame.state.require(None, Kind.MODE, Mode(profiling, False), "no profiler is active")


@named_rule("torch._dynamo.decorators", "graph_break")
def graph_break(frame: Frame, msg: Variable | None = None) -> Variable:
    """A mark for another compiler."""
    return constant(None)


@named_rule("torch._dynamo.decorators", "DynamoConfigPatchProxy.__enter__")
def enter_settings(frame: Frame, settings: Variable) -> Variable:
    """Settings of another compiler, as around what exported modules check of their inputs."""
    return constant(None)


@named_rule("torch._dynamo.decorators", "DynamoConfigPatchProxy.__exit__")
def leave_settings(frame: Frame, settings: Variable, *exception: Variable) -> Variable:
    return constant(None)


@builtin(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(frame: Frame, lists: Variable, with_indices: Variable | None = None) -> Variable:
    """Lists of tensors in groups of one device and dtype, as torch's own function groups them."""
    rows = [list(elements(frame, row)) for row in elements(frame, lists)]
    samples: Any = [[_sample(item) for item in row] for row in rows]
    try:
        found = torch._C._group_tensors_by_device_and_dtype(samples, True)
    except RuntimeError as error:
        raise python_error(error) from error
    wants_indices = with_indices is not None and plain_value(with_indices)
    groups: dict[Any, Variable] = {}
    for key, (_, indices) in found.items():
        chosen: list[Variable] = [
            SequenceVariable([row[n] for n in indices] if row else [], list) for row in rows
        ]
        places: list[Variable] = [constant(n) for n in indices] if wants_indices else []
        pair: list[Variable] = [SequenceVariable(chosen, list), SequenceVariable(places, list)]
        groups[key] = SequenceVariable(pair, tuple)
    return DictVariable(groups)


def _sample(item: Variable) -> torch.Tensor | None:
    """A tensor with the device and dtype of another, or None for None."""
    if isinstance(item, TensorVariable):
        return torch.empty(0, dtype=item.fake.dtype, device=item.fake.device)
    if plain_value(item) is None:
        return None
    raise TraceBreakError("GB0009", "something that is no tensor among tensors to group")
