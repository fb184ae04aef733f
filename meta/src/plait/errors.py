"""Errors of the meta-package."""

from __future__ import annotations

from plait_utils import PlaitError


class CompileArgumentError(PlaitError, ValueError):
    """A wrong argument to `plait.compile` or `plait.report`; names the valid ones."""


class StageError(PlaitError, RuntimeError):
    """A stage of the pipeline failed, and the caller asked not to fall back to eager.

    Raised for failures inside plait under `fullgraph=True`, and for every graph that
    would run eagerly under `options={"strict": True}`.
    """
