"""DTensors that traced code makes of local tensors, lays out anew, and takes apart again.

Each is one node of the graph, by torch's own functions; what these do, functional collectives among
it, is recorded as a wrapper's code is, when the graph becomes one over what wrappers hold.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.rules.collectives import known_mesh
from plait_bytecode_tracer.rules.registry import named_rule
from plait_bytecode_tracer.tensors.wrappers import require_code
from plait_bytecode_tracer.values.constants import is_constant, is_placement_class
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    TensorVariable,
    Variable,
)
from plait_utils import dataclass

_MODULE = "torch.distributed.tensor._api"


def _dtensor() -> Any:
    """The class; whoever asks has one, or a function of it."""
    return sys.modules[_MODULE].DTensor


@dataclass(frozen=True, slots=True)
class OfDTensor:
    """A method of DTensor, as a function that a graph calls.

    Args:
        name: of the method.
        beside: what it is given after the tensor: meshes, which a graph has no other way to name,
            and placements, which graphs of torch 2.11 and 2.12 cannot write.
        named: what it is given by name, with the names.
    """

    name: str
    beside: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, owner: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        method = getattr(_dtensor(), self.name)
        made: torch.Tensor = method(owner, *self.beside, **dict(self.named), **kwargs)
        return made


@named_rule(_MODULE, "DTensor.from_local")
def from_local(
    frame: Frame,
    local: Variable,
    mesh: Variable | None = None,
    placements: Variable | None = None,
    run_check: Variable | None = None,
    **kwargs: Variable,
) -> Variable:
    """A DTensor of what each process has."""
    real = None if mesh is None else known_mesh(frame, mesh)
    if real is None:
        raise TraceBreakError("GB0002", "DTensor.from_local without a mesh that has groups")
    if not (run_check is None or (isinstance(run_check, Known) and run_check.value is False)):
        raise TraceBreakError("GB0002", "DTensor.from_local, which asks the other processes")
    if not isinstance(local, TensorVariable) or local.cls is not torch.Tensor:
        raise TraceBreakError("GB0009", "DTensor.from_local of no plain tensor")
    given = constant(None) if placements is None else placements
    return _node(frame, "from_local", local, (real, _known(given)), kwargs)


def _of_dtensor(name: str, **fixed: bool) -> Callable[..., Variable]:
    """A rule for a method that is one node; ``fixed`` are arguments that it always gets."""

    @named_rule(_MODULE, f"DTensor.{name}")
    def rule(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        given = tuple(_known(_without_mesh(frame, owner, each)) for each in args)
        named = {key: _without_mesh(frame, owner, each) for key, each in kwargs.items()}
        named |= {key: constant(value) for key, value in fixed.items()}
        return _node(frame, name, owner, given, named)

    return rule


_of_dtensor("redistribute", async_op=False)  # a graph waits where the result is used
_of_dtensor("to_local")
_of_dtensor("full_tensor")


def _without_mesh(frame: Frame, owner: Variable, given: Variable) -> Variable:
    """An argument; None in the place of the mesh that a DTensor has anyway."""
    mesh = known_mesh(frame, given)
    if mesh is None:
        return given
    if mesh != _fake(owner).device_mesh:
        raise TraceBreakError("GB0002", "a DTensor that goes to another mesh")
    return constant(None)


def _node(
    frame: Frame, name: str, owner: Variable, beside: tuple[Any, ...], kwargs: dict[str, Variable]
) -> Variable:
    require_code(frame.state, _dtensor())
    named = {key: _known(each) for key, each in kwargs.items() if _holds_placements(each)}
    target = OfDTensor(name, beside, tuple(named.items()))
    rest = {key: each for key, each in kwargs.items() if key not in named}
    node, made = frame.state.emit("call_function", target, [owner], rest)
    return frame.state.tensor_result(node, made)


def _holds_placements(variable: Variable) -> bool:
    """Whether an argument is a placement or a sequence of such."""
    if isinstance(variable, SequenceVariable):
        return any(map(_holds_placements, variable.items))
    value: Any = variable.value if isinstance(variable, Known) else None
    held = value if type(value) in (tuple, list) else (value,)
    return any(is_placement_class(type(each)) for each in held)


def _known(variable: Variable) -> Any:
    """An argument that is a constant, or a list or tuple of such."""
    if isinstance(variable, SequenceVariable) and variable.kind in (tuple, list):
        return tuple(map(_known, variable.items))
    if isinstance(variable, Known) and is_constant(variable.value):
        return variable.value
    raise TraceBreakError("GB0002", "placements of a DTensor that differ from call to call")


@named_rule(_MODULE, "DTensor.placements")
def placements(frame: Frame, owner: Variable) -> Variable:
    """How it lies over the processes, which is guarded for one from outside."""
    return constant(_fake(owner).placements)


@named_rule(_MODULE, "DTensor.device_mesh")
def device_mesh(frame: Frame, owner: Variable) -> Variable:
    """The mesh that it lies over, which is guarded for one from outside."""
    mesh = _fake(owner).device_mesh
    return Known(mesh, frame.state.constants.source(mesh, "the mesh of a DTensor"))


def _fake(owner: Variable) -> Any:
    if not isinstance(owner, TensorVariable):
        raise TraceBreakError("GB0009", "a DTensor that is no tensor of the graph")
    return owner.fake
