"""Which images lie with channels last in a graph, and why, for people to read.

The pass that lays them out notes it on each node that it looks at or makes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from plait_fx_passes.layouts import traced_numel
from plait_fx_passes.printer import format_dtype
from plait_utils import dataclass

_KEY = "image_layout"
"""Of a node's `meta`."""
_LINES = 3
"""How many convolutions a summary names by the user's line."""


class ImageRole(enum.Enum):
    """What became of an image, or of a convolution's images."""

    WANTED = "given channels last"
    """A convolution that is given images with channels last."""
    KEPT = "channels last"
    """Computed from such images, in the same order."""
    MADE = "rearranged to channels last"
    RESTORED = "rearranged back"
    REFUSED = "not rearranged"
    """A convolution that would be faster on images with channels last, and is not given them."""


@dataclass(frozen=True, slots=True)
class _Note:
    role: ImageRole
    why: str


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """One value of a graph: what became of it, why, and the user's line that computed it.

    ``bytes`` is its size; rearranging reads and writes as many.
    """

    name: str
    role: ImageRole
    why: str
    type: str
    bytes: int
    line: str

    def __str__(self) -> str:
        line = f" ({self.line})" if self.line else ""
        return f"{self.name} {self.type}, {self.role.value}: {self.why}{line}"


def note_layout(node: fx.Node, role: ImageRole, why: str) -> None:
    """Remember for `image_layouts` what became of a node's value."""
    node.meta = {**node.meta, _KEY: _Note(role, why)}


def without_note(meta: Mapping[str, object]) -> dict[str, object]:
    """What a new node may take over from the metadata of the one that it copies or looks at."""
    return {key: value for key, value in meta.items() if key not in ("val", _KEY)}


def image_layouts(graph: fx.Graph) -> tuple[ImageLayout, ...]:
    """What becomes of the images that a graph computes, in its order; nothing where no pass looked
    at any."""
    calls = (node for node in graph.nodes if node.op == "call_function")
    return tuple(_fact(node, node.meta[_KEY]) for node in calls if _KEY in node.meta)


def _fact(node: fx.Node, note: _Note) -> ImageLayout:
    value = node.meta["val"]
    parts = value if isinstance(value, (tuple, list)) else [value]
    image = next(part for part in parts if isinstance(part, torch.Tensor))
    return ImageLayout(
        name=node.name,
        role=note.role,
        why=note.why,
        type=f"{format_dtype(image.dtype)}[{', '.join(map(str, image.shape))}]",
        bytes=traced_numel(image) * image.element_size(),
        line=str(node.meta.get("source_line") or ""),
    )


def summarize_layouts(layouts: Sequence[ImageLayout]) -> str:
    """In a few lines: how many values lie with channels last, for which convolutions, and what is
    rearranged for that; empty where there is nothing to say."""
    return "\n".join(_summary(layouts))


def _summary(layouts: Sequence[ImageLayout]) -> Iterator[str]:
    by_role = {role: [each for each in layouts if each.role is role] for role in ImageRole}
    wanted, refused = by_role[ImageRole.WANTED], by_role[ImageRole.REFUSED]
    if wanted:
        values = len(wanted) + len(by_role[ImageRole.KEPT])
        yield f"{_count(values, 'value')} with channels last, for {_convolutions(wanted)}"
        made, restored = by_role[ImageRole.MADE], by_role[ImageRole.RESTORED]
        yield f"  rearranged for that: {_sizes(made)} to it, {_sizes(restored)} back"
    if refused:
        yield f"no channels last for {_convolutions(refused)}: {refused[0].why}"


def _convolutions(layouts: Sequence[ImageLayout]) -> str:
    lines = list(dict.fromkeys(each.line.split(" in ")[0] for each in layouts if each.line))
    more = len(lines) - _LINES
    named = ", ".join(lines[:_LINES]) + (f" and {more} more lines" if more > 0 else "")
    return _count(len(layouts), "convolution") + (f" ({named})" if named else "")


def _sizes(layouts: Sequence[ImageLayout]) -> str:
    if not layouts:
        return "none"
    return f"{_count(len(layouts), 'value')} ({sum(each.bytes for each in layouts):,} bytes)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
