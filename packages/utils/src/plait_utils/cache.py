"""A disk cache that survives crashes, full disks, corruption and concurrent processes.

Each entry is a file of its own, built in a temporary folder and moved into place, with
a checksum beside the data, so a reader sees a whole entry or none. What a folder cannot
store is kept in a temporary folder for this process, with one warning.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from plait_utils import cache_files
from plait_utils.cache_files import StorageError
from plait_utils.errors import PlaitError
from plait_utils.forks import new_lock
from plait_utils.log import warn_once
from plait_utils.paths import lacks_home, user_folder

_MOST_BYTES = 2 << 30
_fallbacks: dict[Path, tuple[Path, int]] = {}
_fallbacks_lock = new_lock()


class CacheError(PlaitError):
    """An entry that was not built, or that neither the cache nor a temporary folder can hold."""


def default_cache_root() -> Path:
    """`PLAIT_CACHE_DIR`, or the user's cache folder for plait."""
    configured = os.environ.get("PLAIT_CACHE_DIR")
    if configured:
        return user_folder(configured)
    import platformdirs

    return Path(platformdirs.user_cache_dir("plait"))


def default_cache_bytes() -> int:
    """`PLAIT_CACHE_MB` megabytes, or 2 GiB. What is no number costs one warning."""
    configured = os.environ.get("PLAIT_CACHE_MB", "")
    try:
        return max(int(configured), 0) << 20 if configured else _MOST_BYTES
    except ValueError:
        warn_once(
            "cache", f"PLAIT_CACHE_MB {configured}", "PLAIT_CACHE_MB is no number: %r", configured
        )
        return _MOST_BYTES


class DiskCache:
    """Bytes and files by key, in a folder.

    Args:
        root: the folder; `default_cache_root()` if not given. It is created on demand.
        max_bytes: the oldest-used entries go when the folder grows past this; `PLAIT_CACHE_MB`
            megabytes if not given, 2048 by default.
    """

    def __init__(self, root: Path | None = None, *, max_bytes: int | None = None) -> None:
        self.root = default_cache_root() if root is None else Path(root)
        self.max_bytes = default_cache_bytes() if max_bytes is None else max_bytes

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None. A damaged entry counts as none."""
        path = self.get_file(key, ".bin")
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`; where no disk has room for it, do nothing."""
        with contextlib.suppress(CacheError):
            self.put_file(key, ".bin", data)

    def get_file(self, key: str, suffix: str) -> Path | None:
        """The checked file of an entry, or None. A damaged entry counts as none."""
        for folder in self._folders():
            path = cache_files.entry_path(folder, key, suffix)
            if cache_files.is_sound(path):
                with contextlib.suppress(OSError):
                    os.utime(path)  # most recently used
                return path
        return None

    def put_file(self, key: str, suffix: str, data: bytes) -> Path:
        """Store `data` as a file and return its path. Raises CacheError if no disk has room."""

        def write(path: Path) -> None:
            try:
                path.write_bytes(data)
            except OSError as error:
                raise CacheError(f"cannot store {len(data)} bytes: {error}") from error

        return self.get_or_build(key, suffix, write, replace=True)

    def get_or_build(
        self, key: str, suffix: str, build: Callable[[Path], object], *, replace: bool = False
    ) -> Path:
        """The file of `key`, built by `build(temporary_path)` if it is not there.

        One process builds an entry at a time; others wait and use its result. What
        `build` raises passes through, and leaves nothing behind. Raises CacheError if it
        leaves no file, or where no disk has room for that file.
        """
        found = None if replace else self.get_file(key, suffix)
        if found is not None:
            return found
        with _Product(build, f"entry{suffix}") as product:
            try:
                return self._store(self.root, key, suffix, product, replace)
            except StorageError as error:
                folder = self._fallback(error)
            try:
                return self._store(folder, key, suffix, product, replace)
            except StorageError as error:
                raise _no_room(error) from error

    def remove(self, key: str, suffix: str) -> None:
        """Delete an entry, so that the next `get_or_build` builds it anew."""
        for folder in self._folders():
            cache_files.remove(cache_files.entry_path(folder, key, suffix))

    def clear(self) -> int:
        """Delete every entry and what killed processes left; return how many files went."""
        if lacks_home(self.root):
            return 0
        removed = sum(cache_files.remove(path) for path in cache_files.entries(self.root))
        return removed + cache_files.sweep(self.root)

    def entries(self) -> list[Path]:
        """The files of all entries, in order of their names; some may be damaged."""
        return [] if lacks_home(self.root) else cache_files.entries(self.root)

    def size_bytes(self) -> int:
        """Bytes of all files of the cache."""
        return 0 if lacks_home(self.root) else cache_files.size_bytes(self.root)

    def _folders(self) -> list[Path]:
        with _fallbacks_lock:
            fallback = _fallbacks.get(self.root)
        roots = [] if lacks_home(self.root) else [self.root]
        return roots if fallback is None else [*roots, fallback[0]]

    def _store(self, folder: Path, key: str, suffix: str, product: _Product, replace: bool) -> Path:
        if lacks_home(folder):
            raise StorageError("there is no such home folder")
        path = cache_files.entry_path(folder, key, suffix)
        with cache_files.locked(path):
            if not replace and cache_files.is_sound(path):
                return path
            cache_files.install(product.file(path.parent), path)
        if _upkeep.is_due(folder, cache_files.size_of(path), self.max_bytes):
            _upkeep.note(folder, cache_files.evict(folder, self.max_bytes, keep=path))
            cache_files.sweep(folder)
        return path

    def _fallback(self, reason: StorageError) -> Path:
        """The temporary folder of this process in place of `root`; one for each root."""
        with _fallbacks_lock:
            folder, owner = _fallbacks.get(self.root, (None, None))
            if folder is None or not folder.is_dir():
                if owner is not None:
                    os.close(owner)
                    del _fallbacks[self.root]
                try:
                    made = cache_files.new_fallback_folder()
                except OSError as error:
                    raise _no_room(error) from error
                _fallbacks[self.root] = made
                folder = made[0]
                atexit.register(_remove_own, folder, os.getpid())
        warn_once(
            "cache",
            f"unwritable: {self.root}",
            "cannot write to the cache folder %s (%s); compiled code is kept for this "
            "process only. Set PLAIT_CACHE_DIR to a folder that can be written.",
            self.root,
            reason,
        )
        return folder


def reset_fallbacks() -> None:
    """Delete the temporary folders that stand in for unwritable ones."""
    with _fallbacks_lock:
        for folder, owner in _fallbacks.values():
            shutil.rmtree(folder, ignore_errors=True)
            os.close(owner)
        _fallbacks.clear()


class _Upkeep:
    """When to look through a whole cache folder again, which costs time for each of its files.

    The first time that this process stores something there, and whenever what it has stored since
    could have taken the folder past its limit.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._sizes: dict[Path, int] = {}

    def is_due(self, folder: Path, stored: int, max_bytes: int) -> bool:
        """After storing so many bytes in the folder."""
        with self._lock:
            size = self._sizes.get(folder)
            if size is not None:
                self._sizes[folder] = size = size + stored
            return size is None or size > max_bytes

    def note(self, folder: Path, size: int) -> None:
        """The folder was looked through, and holds so many bytes."""
        with self._lock:
            self._sizes[folder] = size


_upkeep = _Upkeep()


class _Product:
    """What a builder makes: built when first asked for, once however many folders refuse it."""

    def __init__(self, build: Callable[[Path], object], name: str) -> None:
        self._build = build
        self._name = name
        self._file: Path | None = None
        self._scratch = contextlib.ExitStack()

    def __enter__(self) -> _Product:
        return self

    def __exit__(self, *raised: object) -> None:
        self._scratch.close()

    def file(self, bucket: Path) -> Path:
        if self._file is None:
            folder = self._scratch.enter_context(cache_files.scratch_folder(bucket))
            file = folder / self._name
            self._build(file)
            if not file.is_file():
                raise CacheError("building a cache entry left no file")
            self._file = file
        return self._file


def _no_room(error: Exception) -> CacheError:
    return CacheError(
        f"neither the cache folder nor the temporary folder can be written: {error}",
        hint="Set PLAIT_CACHE_DIR or TMPDIR to a folder with free space.",
    )


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child must not take its parent's folder away
        shutil.rmtree(folder, ignore_errors=True)
