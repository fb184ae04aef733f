"""Operations that give a tensor of the caller's another geometry, which a graph's input has not.

The fake tensor of an input says what each call is given. An operation that resized it would make
a program for tensors of the new size, with guards for those, and leave the caller's as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from plait_bytecode_tracer.errors import TraceBreakError
from plait_bytecode_tracer.values.variables import SequenceVariable, TensorVariable, Variable
from plait_utils.wrappings import is_wrapper

if TYPE_CHECKING:
    from plait_bytecode_tracer.state import TraceState

TURNING = frozenset(
    {"t_", "transpose_", "swapaxes_", "swapdims_", "unsqueeze_", "squeeze_", "as_strided_"}
)
"""What makes a tensor look at its memory in another way."""
RESIZING = frozenset({"resize_", "resize_as_", "resize_as_sparse_", "set_"})
"""What gives a tensor other memory, or more of it."""


def refuse_reshaping(target: Any) -> None:
    """Break at a function, or an operator of the dispatcher, that changes a tensor's geometry.

    Methods of these names have rules of their own.
    """
    operator = getattr(target, "overloadpacket", target)
    name = getattr(operator, "__name__", "")
    if name in TURNING or name in RESIZING:
        raise TraceBreakError("GB0002", f"{name} of a tensor")


def refuse_resized(
    state: TraceState, kind: str, target: Any, args: Any, kwargs: Mapping[str, Any], out: Variable
) -> None:
    """Break where an operation would resize an `out=` of the caller's to the result's shape.

    It is run with stand-ins for those of `out=` first: fake tensors resize as real ones do.
    """
    outs = list(_tensors(out))
    if not any(_is_input(each) and not is_wrapper(each.fake) for each in outs):
        return
    with state.fake_mode:
        alike = [_alike(each.fake) for each in outs]
    given = alike[0] if isinstance(out, TensorVariable) else type(kwargs["out"])(alike)
    state.run(kind, target, args, {**kwargs, "out": given})
    for each, stand_in in zip(outs, alike, strict=True):
        if _is_input(each) and stand_in.shape != each.fake.shape:
            raise TraceBreakError("GB0002", "out= of a tensor of the caller's, which is resized")


def _tensors(out: Variable) -> Iterable[TensorVariable]:
    items = out.items if isinstance(out, SequenceVariable) else [out]
    return (item for item in items if isinstance(item, TensorVariable))


def _is_input(tensor: TensorVariable) -> bool:
    return tensor.node.op in ("placeholder", "get_attr")


def _alike(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
