"""How often what a graph expects of data is not so, and the program goes on nevertheless."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plait_bytecode_tracer.failing import Failed
from plait_utils.checks import is_check_failure

MAX_RETURNS = 8
"""After how many calls that return although a check has failed a graph does without checks.

A program that handles what it raises, or raises less than it seems, would run the graph in vain.
Calls that raise may do so as often as they like.
"""


class Counted:
    """What a call does where its graph fails, which counts the calls that return then.

    Args:
        failed: what is done.
        give_up: called once, when there have been too many.
    """

    def __init__(self, failed: Failed, give_up: Callable[[], None]) -> None:
        self._failed = failed
        self._give_up = give_up
        self._count = 0

    def __call__(self, error: BaseException, *values: Any) -> Any:
        is_check = is_check_failure(error)
        result = self._failed(error, *values)
        if is_check:
            self._count += 1
            if self._count == MAX_RETURNS:
                self._give_up()
        return result
