"""Errors of the C++ backend."""

from __future__ import annotations

from plait_utils import PlaitError


class CompilerNotFoundError(PlaitError):
    """No working C++ compiler."""


class CompilationError(PlaitError):
    """The compiler refused generated code, or failed."""


class UnsupportedProgramError(PlaitError):
    """A program that the C++ host cannot carry out; the Python host can."""
