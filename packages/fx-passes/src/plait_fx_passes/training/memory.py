"""A function or module that trains with less memory: the recomputing partition, applied by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.errors import NoGradientsError
from plait_fx_passes.passes.manager import run_passes
from plait_fx_passes.training.joint import to_joint
from plait_fx_passes.training.partition import Partition, partition
from plait_fx_passes.training.pieces import Piece, in_pieces, run_pieces
from plait_fx_passes.training.runtime import wrap_training
from plait_fx_passes.training.waypoints import WaypointError

GraphCompiler: TypeAlias = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]

_DEVICES = ("cpu", "cuda")


def memory_efficient(
    function: Callable[..., Any],
    *,
    budget: float | None = None,
    compiler: GraphCompiler | None = None,
    inspect: Callable[[Partition], object] | None = None,
) -> Callable[..., Any]:
    """``function`` with little saved between its forward and its backward.

    It is traced by :func:`torch.fx.symbolic_trace`, once, and partitioned at the first call with
    tensors of each set of shapes, strides, dtypes and devices. Calls for which no gradients are
    needed run ``function`` itself.

    Args:
        function: a function of tensors, or a module; what decides by the values of tensors
            cannot be traced. Arguments are positional.
        budget: as for :func:`plait_fx_passes.partition`.
        compiler: makes a callable of a flat ATen graph and its (fake) inputs; called for the
            forward and for the backward. None runs them by eager's kernels, one by one.
        inspect: called with each partition, to print what it saves, for example.

    Returns:
        A function of the same tensors; for a module, with the module's own parameters.

    Raises:
        ValueError: the budget is not between 0 and 1.
        TypeError: when called, for an argument that is no tensor.
        AtenTraceError: when called, if gradients cannot be captured.
    """
    if budget is not None and not 0 <= budget <= 1:
        raise ValueError(f"a memory budget is a number from 0 to 1, not {budget!r}")
    traced = fx.symbolic_trace(function)
    made: dict[object, Callable[..., Any]] = {}

    @functools.wraps(getattr(function, "forward", function))
    def run(*inputs: torch.Tensor) -> Any:
        for each in inputs:
            if not isinstance(each, torch.Tensor):
                raise TypeError(f"memory_efficient functions take tensors, not {type(each)}")
        if not torch.is_grad_enabled():
            return function(*inputs)
        key = _key(traced, inputs)
        if key not in made:
            made[key] = _compiled(traced, function, inputs, budget, compiler, inspect)
        return made[key](*inputs)

    return run


def _compiled(
    traced: fx.GraphModule,
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    budget: float | None,
    compiler: GraphCompiler | None,
    inspect: Callable[[Partition], object] | None,
) -> Callable[..., Any]:
    try:
        recorded = to_joint(traced, inputs)
    except NoGradientsError:
        return function
    except WaypointError as error:
        pieces = in_pieces(traced, inputs, error)

        def compile_piece(piece: Piece) -> Callable[..., Any]:
            program = piece.program
            return _compiled(program, program, piece.examples, budget, compiler, inspect)

        return run_pieces(pieces, compile_piece)
    joint = recorded.replace_graph(run_passes(recorded.flat()).graph)
    parts = partition(joint, budget)
    if inspect is not None:
        inspect(parts)
    forward, backward = parts.forward.module(), parts.backward.module()
    if compiler is None:
        return wrap_training(joint, parts, forward, backward, traced)
    return wrap_training(
        joint,
        parts,
        compiler(forward, parts.forward.example_inputs),
        compiler(backward, parts.backward.example_inputs),
        traced,
    )


def _key(traced: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> object:
    """What a partition is made for: equal for calls that it fits."""
    tensors = [*inputs, *traced.parameters(), *traced.buffers()]
    first: dict[int, int] = {}
    autocast = tuple(
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in _DEVICES
    )
    return autocast, tuple(
        (
            *(tuple(each.shape), each.stride(), each.dtype, each.device),
            *(each.requires_grad, each.is_leaf),
            first.setdefault(id(each), position),
        )
        for position, each in enumerate(tensors)
    )
