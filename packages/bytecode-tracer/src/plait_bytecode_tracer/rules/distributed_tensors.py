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
from plait_bytecode_tracer.values.variables import Known, TensorVariable, Variable
from plait_utils import dataclass

_MODULE = "torch.distributed.tensor._api"


def _dtensor() -> Any:
    """The class; whoever asks has one, or a function of it."""
    return sys.modules[_MODULE].DTensor


@dataclass(frozen=True, slots=True)
class OfDTensor:
    """A method of DTensor, as a function that a graph calls.

    ``mesh`` is its second argument, which a graph has no other way to name; None where it has none.
    """

    name: str
    mesh: Any = None

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, owner: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        method = getattr(_dtensor(), self.name)
        beside = () if self.mesh is None else (self.mesh,)
        made: torch.Tensor = method(owner, *beside, *args, **kwargs)
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
    return _node(frame, OfDTensor("from_local", real), [local, given], kwargs)


def _of_dtensor(name: str, **fixed: bool) -> Callable[..., Variable]:
    """A rule for a method that is one node; ``fixed`` are arguments that it always gets."""

    @named_rule(_MODULE, f"DTensor.{name}")
    def rule(frame: Frame, owner: Variable, *args: Variable, **kwargs: Variable) -> Variable:
        given = [_without_mesh(frame, owner, each) for each in args]
        named = {key: _without_mesh(frame, owner, each) for key, each in kwargs.items()}
        named |= {key: constant(value) for key, value in fixed.items()}
        return _node(frame, OfDTensor(name), [owner, *given], named)

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


def _node(frame: Frame, target: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    require_code(frame.state, _dtensor())
    node, made = frame.state.emit("call_function", target, args, kwargs)
    return frame.state.tensor_result(node, made)


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
