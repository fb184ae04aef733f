"""Torch's functional collectives: operators of the graph, each waited for as soon as it is made.

Eager gives a tensor that is waited for when it is first used. A graph holds the wait as an
operator, which later stages put where the result is used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.guards import Kind, Mode
from plait_bytecode_tracer.rules.registry import named_rule
from plait_bytecode_tracer.values.constants import is_constant
from plait_bytecode_tracer.values.sources import Access
from plait_bytecode_tracer.values.variables import Known, SequenceVariable, Variable

_MESH = "torch.distributed.device_mesh"
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
    """The name of a group, by which operators know it; guarded, as another may stand in its place
    in a later call."""
    value = group.value if isinstance(group, Known) else None
    if isinstance(value, str):
        return constant(value)
    if isinstance(value, dist.ProcessGroup):
        name = str(value.group_name)
        _require(frame, group, functools.partial(_is_called, name), f"is the group {name}")
        return constant(name)
    found = _group_of_mesh(frame, group)
    if found is None:
        raise TraceBreakError("GB0002", "a collective of ranks, or of a mesh of devices")
    return constant(found)


@named_rule(_MODULE, "_resolve_group_name")
def resolve_group_name(frame: Frame, group: Variable, tag: Variable | None = None) -> Variable:
    """The same, as torch before 2.13 asks for it."""
    return resolve_group(frame, group, tag)


def _require(frame: Frame, variable: Variable, check: Callable[[object], bool], text: str) -> None:
    """Guard what is found of an object that comes from outside."""
    source = variable.source if isinstance(variable, Known) else None
    if source is None or source.access is Access.CONSTANT:
        return
    name = frame.state.constants.name(check)
    frame.state.guard(source, f"{name}({{}})", f"{source.text} {text}")


def _is_called(name: str, group: object) -> bool:
    return isinstance(group, dist.ProcessGroup) and str(group.group_name) == name


def _group_of_mesh(frame: Frame, group: Variable) -> str | None:
    """The name of a mesh's group: of one dimension, or of a mesh and a dimension."""
    mesh, dim = group, 0
    if isinstance(group, SequenceVariable) and group.kind is tuple and len(group.items) == 2:
        mesh, which = group.items
        if not isinstance(which, Known) or type(which.value) is not int:
            return None
        dim = which.value
    found = known_mesh(frame, mesh)
    if found is None or (mesh is group and found.ndim != 1):
        return None  # eager says what is wrong with it
    names = found._dim_group_names
    return str(names[dim]) if -len(names) <= dim < len(names) else None


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


def known_mesh(frame: Frame, mesh: Variable) -> Any:
    """A mesh of devices, guarded by what it looks like and by the names of its groups: one of the
    same shape that is made when these are gone may have others. None for what is none."""
    module = sys.modules.get(_MESH)
    value = mesh.value if isinstance(mesh, Known) else None
    if module is None or not isinstance(value, module.DeviceMesh):
        return None
    if getattr(value, "_dim_group_names", None) is None:
        return None  # it has no groups
    names = tuple(map(str, value._dim_group_names))
    check = functools.partial(_is_such_mesh, value, names)
    _require(frame, mesh, check, f"is a mesh of the groups {', '.join(names)}")
    return value


def _is_such_mesh(expected: Any, names: tuple[str, ...], mesh: Any) -> bool:
    is_alike = mesh is expected or (type(mesh) is type(expected) and mesh == expected)
    return is_alike and tuple(map(str, getattr(mesh, "_dim_group_names", ()))) == names


def _question(name: str) -> None:
    """A rule for what a mesh tells: its shape, and where in it the process is."""

    @named_rule(_MESH, f"DeviceMesh.{name}")
    def ask(frame: Frame, mesh: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        return _asked(frame, name, mesh, args, kwargs)


def _asked(
    frame: Frame,
    name: str,
    mesh: Variable,
    args: Sequence[Variable],
    kwargs: Mapping[str, Variable],
) -> Variable:
    """What a method or property of a mesh gives: a constant, a group, or another mesh."""
    value = known_mesh(frame, mesh)
    given = [_value(each) for each in (*args, *kwargs.values())]
    if value is None or _OPEN in given:
        raise TraceBreakError("GB0002", f"a call of DeviceMesh.{name}")
    try:
        found = getattr(value, name)
        if not isinstance(vars(type(value)).get(name), property):
            named = dict(zip(kwargs, given[len(args) :], strict=True))
            found = found(*given[: len(args)], **named)
    except Exception as error:
        raise TraceBreakError("GB0006", f"{name} raises {type(error).__name__}") from error
    if is_constant(found):
        return constant(found)
    return Known(found, frame.state.constants.source(found, f"what DeviceMesh.{name} gives"))


_OPEN = object()


def _value(variable: Variable) -> object:
    """A constant, or a tuple of such."""
    if isinstance(variable, SequenceVariable) and variable.kind is tuple:
        items = [_value(each) for each in variable.items]
        return _OPEN if _OPEN in items else tuple(items)
    if isinstance(variable, Known) and is_constant(variable.value):
        return variable.value
    return _OPEN


for _name in (
    *("size", "ndim", "shape", "mesh_dim_names", "device_type", "__getitem__", "get_group"),
    *("get_rank", "get_local_rank", "get_coordinate"),
):
    _question(_name)
