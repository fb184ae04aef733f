"""Errors of the compiler's front door."""

from __future__ import annotations

from plait_utils import PlaitError


class OptionError(PlaitError, ValueError):
    """An argument of `plait.compile` or `plait.report` that it does not take."""


class BackendError(PlaitError):
    """A backend that cannot be used here."""


class StageError(PlaitError, RuntimeError):
    """A stage of the pipeline failed, and the caller asked not to fall back to eager.

    Raised for failures inside plait under `fullgraph=True`, and for every graph that
    would run eagerly under `options={"strict": True}`.
    """
