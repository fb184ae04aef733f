"""Folders into which each stage writes what it made, for people to read."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from plait_utils.log import warn_once
from plait_utils.paths import lacks_home, user_folder
from plait_utils.records import dataclass


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """Where one graph's stages are written; does nothing without a folder."""

    path: Path | None

    def child(self, name: str) -> DumpFolder:
        """The folder of a part, inside this one."""
        return DumpFolder(None if self.path is None else self.path / name)

    def write(self, name: str, text: str) -> None:
        """Write `text` to file `name`, whole or not at all.

        A full or read-only disk costs one warning for all graphs dumped side by side.
        """
        if self.path is None:
            return
        partial = self.path / f"{name}.partial"
        try:
            if lacks_home(self.path):
                raise OSError(errno.ENOENT, "there is no such home folder")
            self.path.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
            partial.replace(self.path / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            place = str(self.path.parent)
            warn_once(
                "dump",
                f"{place}: {error.errno}",
                "cannot write %s: %s. Further dumps into %s that fail so are not reported.",
                self.path / name,
                error,
                place,
            )


def dump_folder(graph_name: str) -> DumpFolder:
    """The folder `graph_name` under `PLAIT_DUMP_DIR`; none where that is not set."""
    root = os.environ.get("PLAIT_DUMP_DIR")
    return DumpFolder(user_folder(root) / graph_name if root else None)
