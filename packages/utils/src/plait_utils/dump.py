"""Folders into which each stage writes what it made, for people to read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from plait_utils.log import get_logger


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """Where one graph's stages are written; does nothing without a folder."""

    path: Path | None

    def write(self, name: str, text: str) -> None:
        """Write `text` to file `name`; a full or read-only disk costs a warning only."""
        if self.path is None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text)
        except OSError as error:
            get_logger("dump").warning("cannot write %s: %s", self.path / name, error)


def dump_folder(graph_name: str) -> DumpFolder:
    """The folder `graph_name` under `PLAIT_DUMP_DIR`; none where that is not set."""
    root = os.environ.get("PLAIT_DUMP_DIR")
    return DumpFolder(Path(root) / graph_name if root else None)
