"""The user's lines that an error names for what was changed before the backward."""

from __future__ import annotations

from torch import fx

from plait_fx_passes.aliasing import is_view

_MOST = 3


def line_of(node: fx.Node) -> str:
    """The user's line that computed a value; the first few that read it if it is an input."""
    if node.op != "placeholder":
        return _line(node)
    lines: dict[str, None] = {}
    waiting = [node]
    while waiting and len(lines) < _MOST:
        for user in waiting.pop(0).users:
            lines.setdefault(_line(user))
            if is_view(user):
                waiting.append(user)
    return "; ".join([line for line in lines if line][:_MOST])


def _line(node: fx.Node) -> str:
    return str(node.meta.get("source_line") or "")
