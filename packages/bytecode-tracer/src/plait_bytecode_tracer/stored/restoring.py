"""Entries of other processes, put to use."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait_bytecode_tracer.entries import Entry, Parts, Recompile, failed_guard, make_entry
from plait_bytecode_tracer.frames.binding import arguments_of, parameter_names
from plait_bytecode_tracer.stored.errors import NotRepeatedError
from plait_bytecode_tracer.stored.keeping import Keeper
from plait_utils import PlaitError, get_logger

if TYPE_CHECKING:
    from plait_bytecode_tracer.dispatch import CompiledFunction


class Again:
    """What a call does where the program of a stored entry fails: it is traced, and made again.

    The program has changed nothing then. Errors are those of the entry that is made, which are
    eager's; the stored one is not used any more.
    """

    __slots__ = ("function",)

    def __init__(self, function: weakref.ref[CompiledFunction]) -> None:
        self.function = function

    def __call__(self, error: BaseException, *values: Any) -> Any:
        if isinstance(error, NotRepeatedError) and error.__cause__ is not None:
            raise error.__cause__ from None
        compiled = self.function()
        if not isinstance(error, Exception) or compiled is None:
            raise error
        get_logger("tracer").info(
            "%s is traced after all, as its stored program failed: %s", compiled.__name__, error
        )
        compiled.forget(self)
        error.__traceback__ = None
        del error  # an error that is handled around the next call would be seen there
        positional, keywords = arguments_of(compiled.function, values)
        return compiled(*positional, **keywords)


def restored_entry(
    keeper: Keeper,
    function: types.FunctionType,
    values: tuple[Any, ...],
    again: Again,
    *,
    native: Callable[[], bool],
) -> tuple[Entry, dict[str, tuple[int | float, ...]]] | None:
    """The first stored entry that fits a call, and what its own call had; None if none fits.

    `native` tells whether guards can be checked natively by now; it is asked where one fits.
    """
    count = len(parameter_names(function.__code__))
    nearest: Recompile | None = None
    try:
        for kept in keeper.entries(function):
            capture = kept.entry.capture
            probe = Entry(again, capture, None)
            failed = failed_guard(probe, values)
            if failed is not None:
                if nearest is None or failed.held > nearest.held:
                    nearest = failed
                continue
            run = kept.load()
            if run is None:
                continue
            parts = Parts(function.__name__, capture, run, (), count, again)
            return make_entry(parts, (), native=native()), kept.entry.seen
    except (PlaitError, OSError, ImportError) as error:
        get_logger("tracer").info("no stored entry of %s: %s", function.__name__, error)
    if nearest is not None:
        keeper.missed(str(nearest))
    return None
