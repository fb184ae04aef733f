"""How far a compiled program had come with its random operators when it raised.

Whoever has to know which random numbers the program itself has drawn, and which another thread
has, cannot see it. A program's error may have an attribute that says it.
"""

from __future__ import annotations

from typing import Any

ATTRIBUTE = "plait_draws"
"""Of an error: how many operators that torch tags as random had run, in the order of the graph."""
NODE = "plait_last_node"
"""Of an error: the name of a node of the graph. Up to it all have run, and after it none."""


def draws_before(error: BaseException) -> int | None:
    """How many there were before an error, or what it was raised from; None: nobody says."""
    found = _said(error, ATTRIBUTE)
    return found if isinstance(found, int) else None


def last_node(error: BaseException) -> str | None:
    """The node up to which a graph had run; None: nobody says."""
    found = _said(error, NODE)
    return found if isinstance(found, str) else None


def _said(error: BaseException, attribute: str) -> Any:
    """What an error has as an attribute, or what it was raised from."""
    each: BaseException | None = error
    while each is not None:
        found = getattr(each, attribute, None)
        if found is not None:
            return found
        each = each.__cause__
    return None
