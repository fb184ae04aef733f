"""`nn.Module`: its call; attributes by torch's own Python; parameters made in the traced code."""

from __future__ import annotations

from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.exceptions.raising import fails_attribute
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.frames.inlining import inline
from plait_bytecode_tracer.objects.attributes import load_attribute
from plait_bytecode_tracer.objects.containers import hold, plain_value
from plait_bytecode_tracer.objects.known_attributes import module_entry
from plait_bytecode_tracer.objects.statics import MODULE_CALL, MODULE_GETATTR
from plait_bytecode_tracer.outside.assumptions import guard_no_hooks
from plait_bytecode_tracer.rules.registry import builtin
from plait_bytecode_tracer.values.plain import HOOKS
from plait_bytecode_tracer.values.variables import (
    DictVariable,
    Known,
    ObjectVariable,
    TensorVariable,
    Variable,
)

CALL_WITH_HOOKS: Any = torch.nn.Module._call_impl


@builtin(MODULE_CALL)
def module_call(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    """`nn.Module.__call__`: hooks, if there are any, around `forward`."""
    if _has_hooks(frame, owner) or _has_global_hooks(frame):
        return inline(frame, CALL_WITH_HOOKS, [owner, *args], dict(kwargs))
    if isinstance(owner, Known) and owner.source is not None:
        if owner.value.__dict__.get("_compiled_call_impl") is not None:
            raise TraceBreakError("GB0002", f"{owner.source.text}, which is compiled by itself")
        guard_no_hooks(frame.state, owner.source, owner.value)
    elif not isinstance(owner, ObjectVariable):
        raise TraceBreakError("GB0009", "a call of a module that is not reached from the call")
    return _call_forward(frame, owner, list(args), kwargs)


@builtin(torch.nn.parallel.DistributedDataParallel._run_ddp_forward)
def run_wrapped(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    """The module in a `DistributedDataParallel`: later stages are told how that sends gradients."""
    limit = getattr(getattr(owner, "value", None), "bucket_bytes_cap", None)
    frame.state.bucket_bytes = limit if isinstance(limit, int) else None
    direct, frame.state.is_direct = frame.state.is_direct, False
    inner = load_attribute(frame, owner, "module")
    frame.state.is_direct = direct
    return frame.call(inner, list(args), kwargs)


def _call_forward(
    frame: Frame, owner: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    direct, frame.state.is_direct = frame.state.is_direct, False
    forward = load_attribute(frame, owner, "forward")
    frame.state.is_direct = direct
    return frame.call(forward, args, kwargs)


def _has_hooks(frame: Frame, owner: Variable) -> bool:
    """Whether a module has hooks now, with what the trace did to them."""
    if isinstance(owner, ObjectVariable):
        found = [owner.attributes.get(name) for name in HOOKS]
        return any(isinstance(table, DictVariable) and table.items for table in found)
    if not isinstance(owner, Known):
        return False
    return any(_has_entries(frame, owner.value.__dict__[name]) for name in HOOKS)


def _has_entries(frame: Frame, table: dict[Any, Any]) -> bool:
    known = frame.state.world.wrapped.get(id(table))
    if isinstance(known, DictVariable) and known.writes:
        return len(known.items) > 0
    return bool(table)


def _has_global_hooks(frame: Frame) -> bool:
    """Whether there are hooks of all modules, with what the trace did to them."""
    shared = torch.nn.modules.module.__dict__
    return any(_has_entries(frame, shared[f"_global{name}"]) for name in HOOKS)


@builtin(MODULE_GETATTR)
def module_getattr(frame: Frame, owner: Variable, name: Variable) -> Variable:
    """`nn.Module.__getattr__`: a parameter, buffer or submodule."""
    if isinstance(owner, ObjectVariable):
        return inline(frame, MODULE_GETATTR, [owner, name], {})
    module, wanted = hold(owner, Known), plain_value(name)
    found = module_entry(frame, module, wanted)
    if found is None:
        kind = type(module.value).__name__
        fails_attribute(f"{kind!r} object has no attribute {wanted!r}", owner, wanted)
    return found


@builtin(torch._C._log_api_usage_once)
def log_usage(frame: Frame, event: Variable) -> Variable:
    """For torch's own statistics."""
    return constant(None)


@builtin(torch.Tensor._make_subclass)
def make_subclass(
    frame: Frame, cls: Variable, data: Variable, require_grad: Variable | None = None
) -> Variable:
    """What `nn.Parameter(data)` makes: a leaf that shares the memory of the data."""
    if plain_value(cls) is not torch.nn.Parameter or not isinstance(data, TensorVariable):
        raise TraceBreakError("GB0009", f"a new {plain_value(cls).__name__}")
    wanted = constant(require_grad is not None and bool(plain_value(require_grad)))
    node, made = frame.state.emit("call_function", torch.nn.Parameter, [data, wanted], {})
    return TensorVariable(node, made, None, torch.nn.Parameter)
