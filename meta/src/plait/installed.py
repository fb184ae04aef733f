"""What installers have noted of packages' files: the same wheel, installed anew or elsewhere, is
the same."""

from __future__ import annotations

import os
import re
from pathlib import Path

_RECORDED = rb"\n(%s),sha256=([\w-]+),(\d+)\r?(?=\n)"
"""A line of a RECORD, as PEP 376 and 627 have it."""


class Installed:
    """Facts of the files of packages below one folder, as the `site-packages` that they lie in.

    Args:
        root: the folder.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._records = _records_below(root)

    def files_of(self, package: str, names: str = r"[^,\n]+") -> Files:
        """Those of a package that is installed under its own name.

        Args:
            names: a regular expression for the files below the package's folder that matter.
        """
        return Files(self._root, package, self._records.get(package), names)


class Files:
    """What is known of the files of a package."""

    def __init__(self, root: str, package: str, record: str | None, names: str) -> None:
        self._prefix = len(root) + 1
        self._installed, self._known = 0, dict[str, tuple[str, int]]()
        if record is None:
            return  # as of those that are developed where they are
        try:
            self._installed = _last_touched(os.stat(record))
            text = Path(record).read_bytes()
        except OSError:
            return
        line = _RECORDED % rf"{re.escape(package)}/(?:{names})".encode()
        for name, hashed, size in re.findall(line, b"\n" + text + b"\n"):
            self._known[name.decode(errors="replace")] = hashed.decode(), int(size)

    def fact(self, path: str, status: os.stat_result) -> str:
        """A line that tells a file from others: its hash, as it was installed; of one that was
        written since, or that no installer knows, where it lies, its size and its time."""
        name = path[self._prefix :]
        hashed, size = self._known.get(name, ("", -1))
        if size == status.st_size and _last_touched(status) <= self._installed:
            return f"{name} {hashed}"
        return f"{path} {status.st_size} {status.st_mtime_ns}"


def _last_touched(status: os.stat_result) -> int:
    """When a file was last written or put where it is, in ns: copies may keep the time of writing,
    but not that of the change."""
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _records_below(root: str) -> dict[str, str]:
    """The installers' records in a folder, by the names of what they installed; none of what is
    there twice, as after an installation that was broken off."""
    found: dict[str, list[str]] = {}
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name.endswith(".dist-info"):
                    name = entry.name.partition("-")[0]
                    found.setdefault(name, []).append(os.path.join(entry.path, "RECORD"))
    except OSError:
        return {}
    return {name: paths[0] for name, paths in found.items() if len(paths) == 1}
