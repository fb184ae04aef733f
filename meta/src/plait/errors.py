"""Errors of the compiler's front door."""

from __future__ import annotations

from plait_utils import PlaitError


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
