"""A disk cache that survives crashes, full disks, corruption and concurrent processes.

Each entry is a file of its own, written to a temporary name and moved into place, with
a checksum beside the data, so a reader sees a whole entry or none. Nothing here raises
for a file system's sake: what cannot be stored is kept in a temporary folder for this
process, with one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from plait_utils.log import get_logger

_CHECKSUM_SUFFIX = ".sha256"


def default_cache_root() -> Path:
    """`PLAIT_CACHE_DIR`, or the user's cache folder for plait."""
    configured = os.environ.get("PLAIT_CACHE_DIR")
    if configured:
        return Path(configured).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("plait"))


class DiskCache:
    """Bytes and files by key, in a folder.

    Args:
        root: the folder; `default_cache_root()` if not given. It is created on demand.
        max_bytes: the oldest-used entries go when the folder grows past this.
    """

    def __init__(self, root: Path | None = None, *, max_bytes: int = 2 << 30) -> None:
        self.root = default_cache_root() if root is None else Path(root)
        self.max_bytes = max_bytes
        self._fallback: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None. A damaged entry counts as none."""
        path = self.get_file(key, ".bin")
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`."""
        self.put_file(key, ".bin", data)

    def get_file(self, key: str, suffix: str) -> Path | None:
        """The checked file of an entry, or None. A damaged one is deleted."""
        for folder in self._folders():
            path = self._path(folder, key, suffix)
            if self._is_sound(path):
                with contextlib.suppress(OSError):
                    os.utime(path)  # most recently used
                return path
        return None

    def put_file(self, key: str, suffix: str, data: bytes) -> Path:
        """Store `data` as a file and return its path."""
        return self.get_or_build(key, suffix, lambda path: _write_all(path, data), replace=True)

    def get_or_build(
        self, key: str, suffix: str, build: Callable[[Path], None], *, replace: bool = False
    ) -> Path:
        """The file of `key`, built by `build(temporary_path)` if it is not there.

        One process builds an entry at a time; others wait and use its result. What
        `build` raises passes through, and leaves nothing behind.
        """
        found = None if replace else self.get_file(key, suffix)
        if found is not None:
            return found
        try:
            return self._build_in(self.root, key, suffix, build, replace)
        except _StorageError as error:
            folder = self._use_fallback(error)
            return self._build_in(folder, key, suffix, build, replace)

    def clear(self) -> int:
        """Delete every entry; return how many files went."""
        removed = 0
        for path in self._entries(self.root):
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
        return removed

    def size_bytes(self) -> int:
        """Bytes of all files of the cache."""
        total = 0
        for path in self._entries(self.root):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def _folders(self) -> list[Path]:
        return [self.root] if self._fallback is None else [self.root, Path(self._fallback.name)]

    def _use_fallback(self, error: _StorageError) -> Path:
        with self._lock:
            if self._fallback is None:
                self._fallback = tempfile.TemporaryDirectory(prefix="plait-cache-")
                get_logger("cache").warning(
                    "cannot write to the cache folder %s (%s); compiled code is kept for this "
                    "process only. Set PLAIT_CACHE_DIR to a folder that can be written.",
                    self.root,
                    error,
                )
            return Path(self._fallback.name)

    def _build_in(
        self, folder: Path, key: str, suffix: str, build: Callable[[Path], None], replace: bool
    ) -> Path:
        import filelock

        path = self._path(folder, key, suffix)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(f"{path}.lock", timeout=600)
            lock.acquire()
        except (OSError, NotImplementedError) as error:
            raise _StorageError(str(error)) from error
        try:
            if not replace and self._is_sound(path):
                return path
            self._build_locked(path, build)
        finally:
            lock.release()
            with contextlib.suppress(OSError):
                os.unlink(f"{path}.lock")
        self._evict(folder)
        return path

    def _build_locked(self, path: Path, build: Callable[[Path], None]) -> None:
        try:
            scratch = Path(tempfile.mkdtemp(prefix="building-", dir=path.parent))
        except OSError as error:
            raise _StorageError(str(error)) from error
        try:
            temporary = scratch / path.name
            build(temporary)
            try:
                checksum = _checksum(temporary)
                _write_all(scratch / "checksum", checksum.encode())
                os.replace(temporary, path)
                os.replace(scratch / "checksum", f"{path}{_CHECKSUM_SUFFIX}")
            except OSError as error:
                raise _StorageError(str(error)) from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _is_sound(self, path: Path) -> bool:
        try:
            expected = Path(f"{path}{_CHECKSUM_SUFFIX}").read_text()
            actual = _checksum(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, UnicodeDecodeError) as error:
            get_logger("cache").warning("cannot read cache entry %s: %s", path, error)
            return False
        if actual == expected:
            return True
        get_logger("cache").warning("cache entry %s is damaged and will be rebuilt", path)
        return False

    def _evict(self, folder: Path) -> None:
        entries: list[tuple[float, int, Path]] = []
        for path in self._entries(folder):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries, key=lambda entry: entry[0]):
            if total <= self.max_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                total -= size

    @staticmethod
    def _entries(folder: Path) -> list[Path]:
        return [path for path in folder.glob("??/*") if path.is_file()]

    @staticmethod
    def _path(folder: Path, key: str, suffix: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return folder / name[:2] / f"{name[2:34]}{suffix}"


class _StorageError(Exception):
    """The file system refused."""


def _write_all(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise _StorageError(str(error)) from error


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
