"""Elements of tensors at symbolic places: `x[n]` is `x.select(0, n)`, for any n.

Torch's own indexing asks for the value of an integer among the indices.
"""

from __future__ import annotations

import torch

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.values.variables import (
    Known,
    SequenceVariable,
    SliceVariable,
    SymbolVariable,
    TensorVariable,
    Variable,
)


def at_open_places(
    frame: Frame, tensor: TensorVariable, key: Variable
) -> tuple[Variable, Variable] | None:
    """A view of a tensor at the symbolic integers of a key, and the rest of the key.

    None where there is none, or it is not known here which dimensions the key is of.
    """
    is_several = isinstance(key, SequenceVariable) and key.kind is tuple
    parts = list(key.items) if isinstance(key, SequenceVariable) and is_several else [key]
    if not any(map(_is_open, parts)):
        return None
    found = _dimensions(parts, tensor.fake.dim())
    if found is None:
        return None
    view: Variable = tensor
    for part, dim in reversed([*zip(parts, found, strict=True)]):
        if _is_open(part):
            view = frame.call(constant(torch.select), [view, constant(dim), part], {})
    rest = [part for part in parts if not _is_open(part)]
    return view, SequenceVariable(rest, tuple) if rest else constant(...)


def with_read_places(frame: Frame, key: Variable) -> Variable:
    """A key in which integers stand for tensors without dimensions, which torch's indexing reads.

    They stay tensors where they cannot be numbers that stay open.
    """
    from plait_bytecode_tracer.shapes.data import open_integer

    def read(part: Variable) -> Variable:
        if isinstance(part, SliceVariable):
            return SliceVariable([read(each) for each in part.parts])
        if not isinstance(part, TensorVariable) or part.fake.dim():
            return part
        if frame.state.reads_elements or part.fake.dtype in (torch.bool, torch.uint8):
            return part
        found = open_integer(frame.state, part, "index")
        return part if found is None else found

    if isinstance(key, SequenceVariable) and key.kind is tuple:
        return SequenceVariable([read(part) for part in key.items], tuple)
    return read(key)


def _is_open(part: Variable) -> bool:
    return isinstance(part, SymbolVariable) and part.kind is int


def _dimensions(parts: list[Variable], count: int) -> list[int] | None:
    """The first dimension that each part of a key is of; None where that is not known."""
    taken = [_taken(part) for part in parts]
    known = [each for each in taken if each is not None]
    total = sum(known)
    if len(known) + sum(map(_is_ellipsis, parts)) < len(parts) or total > count:
        return None
    if sum(map(_is_ellipsis, parts)) > 1:
        return None
    found: list[int] = []
    place = 0
    for part, each in zip(parts, taken, strict=True):
        found.append(place)
        place += count - total if _is_ellipsis(part) else each or 0
    return found


def _is_ellipsis(part: Variable) -> bool:
    return isinstance(part, Known) and part.value is ...


def _taken(part: Variable) -> int | None:
    """How many dimensions a part of a key is of."""
    match part:
        case SymbolVariable(kind=kind) if kind is int:
            return 1
        case SliceVariable():
            return 1
        case Known(value) if value is None:
            return 0
        case Known(value) if type(value) in (int, slice):
            return 1
        case TensorVariable(fake=fake):
            return fake.dim() if fake.dtype in (torch.bool, torch.uint8) else 1
    return None
