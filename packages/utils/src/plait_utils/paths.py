"""Folders that users name in the environment."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder(text: str) -> Path:
    """The absolute folder that `text` names, `~` and `~name` being home folders.

    Where there is no such home (an unknown name, a user without an account) the path
    comes back as written, and `lacks_home` tells.
    """
    path = Path(os.path.expanduser(text))
    return path if lacks_home(path) else path.absolute()


def lacks_home(path: Path) -> bool:
    """Whether a path still begins with a `~` that names nobody's home."""
    return path.parts[:1] != () and path.parts[0].startswith("~")
