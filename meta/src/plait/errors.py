"""Errors of the compiler's front door."""

from __future__ import annotations

from collections.abc import Iterable

from plait_utils import PlaitError, shown


class OptionError(PlaitError, ValueError):
    """An argument of `plait.compile` or `plait.report` that it does not take."""


class BackendError(PlaitError):
    """A backend that cannot be used here."""


class StageError(PlaitError, RuntimeError):
    """A stage of the pipeline failed, and the caller asked not to fall back.

    Raised under `options={"strict": True}` for every captured graph that plait cannot compile
    to native code, whatever the reason: a stage that does not support it, a stage that fails,
    a missing compiler. Raised under `fullgraph=True` for failures that are plait's own.

    Not raised for what is no failure of a stage: graph breaks (`fullgraph=True` is for those).
    """


class DeviceIndexError(PlaitError, IndexError):
    """An index of a compiled program on a GPU is out of range.

    Nothing is made again by eager: its kernels assert there, which leaves the GPU unusable for the
    process. What the call did before its graph has happened; of the graph nothing has.
    """


def unknown_name(kind: str, name: object, known: Iterable[str]) -> OptionError:
    """The error for a name that is not one of `known`, with the closest of them."""
    import difflib

    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5) if type(name) is str else []
    listed = ", ".join(repr(each) for each in names)
    meant = f"Did you mean {close[0]!r}? " if close else ""
    return OptionError(f"there is no {kind} {shown(name)}", hint=f"{meant}Known: {listed}.")
