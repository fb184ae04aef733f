"""The error that every plait package derives its own from."""

from __future__ import annotations


class PlaitError(Exception):
    """Says what happened, where in the user's code, and what to do.

    Args:
        message: what happened, one sentence.
        where: the user's source line, such as `"model.py:12 in forward: x = y.item()"`.
        hint: what to change.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  at: {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


_SHOWN_LENGTH = 100


def shown(value: object) -> str:
    """A value for an error message: one line, not too long, whatever its `repr` does."""
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        return f"a {type(value).__name__} (its repr raises {type(error).__name__})"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
