"""Errors of the scheduler."""

from __future__ import annotations


class PlaitError(Exception):
    def __init__(
        self, message: str, *, where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, where, hint

    def __str__(self) -> str:
        return "\n".join(p for p in (self.message, self.where, self.hint) if p)


class ProgramError(PlaitError):
    """A program that is not sound: an error of whoever made it."""


class ProgramSyntaxError(PlaitError):
    """Text that is not a program; says the line and what was expected there."""
