"""Commands that settings name, such as compilers."""

from __future__ import annotations

import os
import shlex
import shutil


def command_words(name: str) -> tuple[str, ...] | None:
    """The words of a command whose first is a program's path; None if there is none.

    Args:
        name: a program, or one with arguments, such as `ccache g++`.
    """
    whole = shutil.which(os.path.expanduser(name))
    if whole is not None:  # also where the path has spaces
        return (whole,)
    try:
        words = shlex.split(name)
    except ValueError:  # a quote that is not closed
        return None
    path = shutil.which(os.path.expanduser(words[0])) if words else None
    return None if path is None else (path, *words[1:])
