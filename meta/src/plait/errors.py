"""Errors of the compiler's front door."""

from __future__ import annotations

from plait_utils import PlaitError


class OptionError(PlaitError, ValueError):
    """An argument of `plait.compile` that it does not take."""


class BackendError(PlaitError):
    """A backend that cannot be used here."""
