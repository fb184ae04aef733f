"""Errors of the scheduler."""

from __future__ import annotations

from plait_utils import PlaitError


class ProgramError(PlaitError):
    """A program that is not sound: an error of whoever made it."""


class ProgramSyntaxError(PlaitError):
    """Text that is not a program; says the line and what was expected there."""
