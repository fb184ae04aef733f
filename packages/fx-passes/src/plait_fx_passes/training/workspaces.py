"""Operators that tell their backward something only where gradients are recorded.

`mkldnn_rnn_layer`, an LSTM on the CPU, gives a workspace that its backward reads where autograd
calls it. Compiled code runs below autograd and with gradients off; so there it is an operator of
this library, which turns them on for the kernel (`plait_utils.with_gradients`). How many bytes the
workspace has is oneDNN's to say: the kernel is asked once for each geometry.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from plait_fx_passes.training.waypoints import WaypointError

_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_CALLS = frozenset((torch.lstm, torch.ops.aten.lstm.input, _LAYER))
"""What calls it in a program."""
_WORKSPACE = 3
"""Which of its results that is."""
_Library: Any = torch.library.Library  # its methods have no types
_LIBRARY = _Library("plait_fx_passes", "FRAGMENT")
_LIBRARY.define(str(_LAYER._schema).removeprefix("aten::"))


def _layer(*args: Any) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        found: tuple[Tensor, ...] = _LAYER(*args)
    return found


def _fake_layer(*args: Any) -> tuple[Tensor, ...]:
    *results, _ = _LAYER(*args)
    return *results, args[0].new_empty(_nbytes_for(args), dtype=torch.uint8)


_LIBRARY.impl("mkldnn_rnn_layer", _layer, "CPU")
_LIBRARY.impl("mkldnn_rnn_layer", _fake_layer, "Meta")


def keep_workspaces(graph: fx.Graph, program: fx.Graph) -> None:
    """Call the operators whose workspace a backward reads so that they give it.

    Args:
        graph: the joint graph of `program`.
        program: what was recorded.

    Raises:
        WaypointError: sizes are symbolic, so that nothing says how large it is: what calls these
            operators is to run as it is.
    """
    for node in graph.find_nodes(op="call_function", target=_LAYER):
        parts = [user for user in node.users if user.target is operator.getitem]
        read = [part for part in parts if part.args[1] == _WORKSPACE and part.users]
        if not read:
            continue
        args = fx.map_arg(node.args, lambda each: each.meta["val"])
        if any(isinstance(size, torch.SymInt) for size in _sizes(args)):
            line = node.meta.get("source_line")
            raise WaypointError(
                nodes=[each.name for each in program.nodes if each.target in _CALLS],
                where=None if line is None else str(line),
                reason="what an LSTM on the CPU tells its backward is of fixed sizes",
            )
        node.target = torch.ops.plait_fx_passes.mkldnn_rnn_layer.default
        values = node.meta["val"]
        empty = values[_WORKSPACE]
        with empty.fake_mode:  # a fake tensor's own `new_empty` loads torch.distributed.tensor
            workspace = torch.empty(_nbytes_for(args), dtype=empty.dtype, device=empty.device)
        node.meta["val"] = (*values[:_WORKSPACE], workspace, *values[_WORKSPACE + 1 :])
        for part in read:
            part.meta["val"] = workspace


def _sizes(args: tuple[Any, ...]) -> list[Any]:
    return [size for each in args if isinstance(each, Tensor) for size in each.shape]


def _nbytes_for(args: tuple[Any, ...]) -> int:
    tensors = [each for each in args if isinstance(each, Tensor)]
    options = tuple(
        tuple(each) if isinstance(each, list) else each for each in args[len(tensors) :]
    )
    return _nbytes(tuple((tuple(each.shape), each.dtype) for each in tensors), options)


@functools.lru_cache(maxsize=256)
def _nbytes(
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...], options: tuple[Any, ...]
) -> int:
    """How many bytes the kernel keeps for tensors of these shapes and dtypes."""
    with _disable_current_modes():
        given = [torch.zeros(shape, dtype=dtype) for shape, dtype in tensors]
        return int(_layer(*given, *options)[_WORKSPACE].numel())
