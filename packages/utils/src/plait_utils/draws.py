"""How many random operators a compiled program had run when it raised.

Whoever has to know which random numbers the program itself has drawn, and which another thread
has, cannot see it. A program's error may have an attribute that says it.
"""

from __future__ import annotations

ATTRIBUTE = "plait_draws"
"""Of an error: how many operators that torch tags as random had run, in the order of the graph."""


def draws_before(error: BaseException) -> int | None:
    """How many there were before an error, or what it was raised from; None: nobody says."""
    each: BaseException | None = error
    while each is not None:
        found = getattr(each, ATTRIBUTE, None)
        if isinstance(found, int):
            return found
        each = each.__cause__
    return None
