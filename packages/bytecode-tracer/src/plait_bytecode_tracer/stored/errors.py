"""Why an entry is not stored, or does not fit another process."""

from __future__ import annotations


class NotStoredError(Exception):
    """Something of a specialisation cannot be found again, or told to be the same, elsewhere."""


class DiffersError(Exception):
    """What a stored entry assumes is not so in this process, or the entry is not sound."""


class NotRepeatedError(Exception):
    """What the call of a stored entry has raised, the cause, is an error of the program's, which
    may have changed something: it is raised, and the call is not made again."""
