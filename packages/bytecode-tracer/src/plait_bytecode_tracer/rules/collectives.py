"""Torch's functional collectives: operators of the graph, each waited for as soon as it is made.

Eager gives a tensor that is waited for when it is first used. A graph holds the wait as an
operator, which later stages put where the result is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch.distributed as dist

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.rules.registry import named_rule
from plait_bytecode_tracer.values.variables import Known, Variable

_MODULE = "torch.distributed._functional_collectives"
_STATE = "torch.distributed.distributed_c10d"


@named_rule(_STATE, "_WorldMeta.WORLD")
def world(frame: Frame, cls: Variable) -> Variable:
    """The default group, guarded by its name, by which operators know it."""
    real = dist.group.WORLD
    if real is None:
        raise TraceBreakError("GB0002", "the default group, before there is one")
    frame.state.require(None, Kind.MODE, Mode(_name_of_world, real.group_name), "the default group")
    return Known(real, frame.state.constants.source(real, "the default group"))


def _name_of_world() -> str | None:
    real = dist.group.WORLD
    return None if real is None else str(real.group_name)


@named_rule(_MODULE, "_resolve_group")
def resolve_group(frame: Frame, group: Variable, tag: Variable | None = None) -> Variable:
    """The name of a group."""
    value = group.value if isinstance(group, Known) else None
    if isinstance(value, str):
        return constant(value)
    if not isinstance(value, dist.ProcessGroup):
        raise TraceBreakError("GB0002", "a collective of ranks, or of a mesh of devices")
    return constant(str(value.group_name))


@named_rule(_MODULE, "_group_or_group_name")
def group_name(frame: Frame, group: Variable) -> Variable:
    """What an operator is given for a group: its name."""
    return resolve_group(frame, group)


@named_rule(_STATE, "_get_group_size_by_name")
def group_size(frame: Frame, group: Variable) -> Variable:
    """How many processes a group has, guarded: another group may get its name later."""
    name = resolve_group(frame, group)
    assert isinstance(name, Known)
    ask = _size_of(name.value)
    try:
        size = ask()
    except Exception as error:
        raise TraceBreakError("GB0006", f"no group is called {name.value}") from error
    reason = f"the group {name.value} has {size} processes"
    frame.state.require(None, Kind.MODE, Mode(ask, size), reason)
    return constant(size)


@functools.cache
def _size_of(name: str) -> Callable[[], int]:
    """What tells the size of the group of a name."""
    ask: Callable[[str], int] = dist.distributed_c10d._get_group_size_by_name  # type: ignore[assignment]  # names are text
    return functools.partial(ask, name)


@named_rule(_MODULE, "_maybe_wrap_tensor")
def wait(frame: Frame, tensor: Variable) -> Variable:
    """The result of a collective, waited for."""
    import torch

    return frame.call(Known(torch.ops._c10d_functional.wait_tensor), [tensor], {})


@named_rule(_MODULE, "_are_we_tracing")
def are_we_tracing(frame: Frame) -> Variable:
    """What it is in eager."""
    return constant(False)
