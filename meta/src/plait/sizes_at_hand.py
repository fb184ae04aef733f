"""The open sizes of a program, as the inputs have them for which it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from plait_scheduler import Program


def sizes_at_hand(program: Program, examples: Sequence[torch.Tensor]) -> dict[str, int]:
    """By the names of a program's symbols, those that sizes or strides of its inputs tell; none for
    sizes that no input has yet.

    Args:
        examples: fakes of its inputs, in their order.
    """
    from plait_scheduler import size_places

    buffers = {buffer.name: buffer.layout for buffer in program.buffers}
    layouts = [buffers[name] for name in program.inputs]
    found = {}
    for symbol, place in size_places(layouts, program.symbols).items():
        fake = examples[place.input]
        sizes = fake.stride() if place.is_stride else fake.shape
        value = _value(sizes[place.dim])
        if value is not None:
            found[symbol] = value
    return found


def _value(size: torch.SymInt | int) -> int | None:
    node = getattr(size, "node", None)
    if node is None:
        return int(size)
    return int(node.hint) if node.has_hint() else None
