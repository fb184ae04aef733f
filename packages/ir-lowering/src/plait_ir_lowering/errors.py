"""Errors of lowering and of the loop IR."""

from __future__ import annotations

from plait_utils import PlaitError


class LoweringError(PlaitError):
    """An ATen node that cannot be expressed in the loop IR."""


class LoopIRError(PlaitError):
    """A loop IR graph that breaks its rules."""
