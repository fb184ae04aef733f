"""The files of the disk cache: names, checks, locks, putting in place, sweeping up.

An entry is a file `ab/cdef….suffix` with a checksum beside it. Only names of that form
are ever deleted, so a cache folder may hold other things.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from plait_utils.log import get_logger, warn_once

CHECKSUM_SUFFIX = ".sha256"
LOCK_SUFFIX = ".lock"
OWNER_FILE = "plait-owner.lock"
"""Locked by the process that a fallback folder belongs to, for as long as it lives."""

_STAGING_PREFIX = "building-"
_SCRATCH_PREFIX = "plait-build-"
_FALLBACK_PREFIX = "plait-cache-"
_RANDOM = "[a-z0-9_]{8}"  # what tempfile appends
_BUCKET = re.compile("[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{30,64}\.[\w.]+")
_STAGING = re.compile(_STAGING_PREFIX + _RANDOM)
_SCRATCH = re.compile(_SCRATCH_PREFIX + _RANDOM)
_FALLBACK = re.compile(_FALLBACK_PREFIX + _RANDOM)

_STALE_SECONDS = 3600.0
"""No build takes this long, so what is older was left by a process that was killed."""
_LOCK_SECONDS = 600.0
_INSTALLING_SECONDS = (0.001, 0.004, 0.016, 0.064)
"""Between data and checksum: what takes longer was killed there, and left no entry."""
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""What file systems answer that have no locks, as NFS without its daemon, or Lustre by default."""
_SCRATCH_BYTES = 64 << 20
"""Free space that building wants."""


class StorageError(Exception):
    """The file system refused."""


def entry_path(folder: Path, key: str, suffix: str) -> Path:
    """Where the entry of `key` lies."""
    name = hashlib.sha256(key.encode()).hexdigest()
    return folder / name[:2] / f"{name[2:34]}{suffix}"


def is_sound(path: Path) -> bool:
    """Whether an entry is there and is what was stored.

    What cannot be read counts as not there: the build that follows replaces it, or says
    that the folder is of no use. What is replaced meanwhile is looked at again.
    """
    try:
        expected, earlier = _stored_checksum(path), None
        while expected != earlier:  # the same checksum may have come back, with other data between
            actual = _checksum(path)
            if actual.encode() == expected[0]:
                return True
            expected, earlier = _stored_checksum(path), expected
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        get_logger("cache").info("cannot read cache entry %s: %s", path, error)
        return False
    warn_once("cache", f"{path}: {actual}", "cache entry %s is damaged and will be rebuilt", path)
    return False


def _stored_checksum(path: Path) -> tuple[bytes, int, int]:
    """What lies beside an entry, and when it was put there, as an inode and a time of change.

    Waited for where the entry is being put in place.
    """
    checksum, lock = (Path(f"{path}{suffix}") for suffix in (CHECKSUM_SUFFIX, LOCK_SUFFIX))
    for seconds in _INSTALLING_SECONDS:
        try:
            return _read_checksum(checksum)
        except FileNotFoundError:
            if not path.exists():
                raise
            if lock.exists():
                time.sleep(seconds)
    return _read_checksum(checksum)


def _read_checksum(path: Path) -> tuple[bytes, int, int]:
    with _open(path) as file:
        status = os.fstat(file.fileno())
        return file.read(), status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from building the entry `path`, whose folder is made if need be.

    Where the file system has no locks, several may build it, and each puts a whole one there.
    """
    import filelock

    lock_file = Path(f"{path}{LOCK_SUFFIX}")
    lock = filelock.FileLock(lock_file, timeout=_LOCK_SECONDS)
    try:
        _make_bucket(path.parent)
        is_possible = _has_locks(path.parent, path.parent.stat().st_dev)
        if is_possible:
            _remove_folder(lock_file)
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        raise StorageError(str(error)) from error
    if not is_possible:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock_file.unlink()  # before the release, so that who waits sees it gone
        lock.release()


_known_locks: dict[int, bool] = {}


def _has_locks(folder: Path, device: int) -> bool:
    """Whether the file system of a folder has locks, asked once for a device."""
    if device not in _known_locks:
        with tempfile.TemporaryFile(dir=folder) as probe:
            try:
                fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                _known_locks[device] = error.errno not in _WITHOUT_LOCKS
            else:
                _known_locks[device] = True
    return _known_locks[device]


def forget_locks() -> None:
    """Ask file systems anew whether they have locks."""
    _known_locks.clear()


def install(file: Path, path: Path) -> None:
    """Copy `file` to the entry `path`, so that a reader sees all of it or none.

    Without a checksum there is no entry: that of an earlier one goes first, so that no data lies
    beside the checksum of other data, even where the process is killed.
    """
    try:
        staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=path.parent))
    except OSError as error:
        raise StorageError(str(error)) from error
    checksum = Path(f"{path}{CHECKSUM_SUFFIX}")
    try:
        shutil.copyfile(file, staging / "data")
        (staging / "checksum").write_text(_checksum(file))
        _remove_folder(path)
        _remove_folder(checksum)
        checksum.unlink(missing_ok=True)
        os.replace(staging / "data", path)
        os.replace(staging / "checksum", checksum)
    except OSError as error:
        raise StorageError(str(error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove(path: Path) -> int:
    """Delete an entry and its checksum; return how many files went."""
    return sum(_delete(item) for item in (Path(f"{path}{CHECKSUM_SUFFIX}"), path))


@contextlib.contextmanager
def scratch_folder(bucket: Path) -> Iterator[Path]:
    """A folder to build an entry of `bucket` in: a temporary one, or in the cache.

    A full disk under the cache must not fail the compiler, nor a full temporary folder:
    the cache's disk is taken where the temporary folder is nearly full and it is not.
    """
    temporary = _free_bytes(None)
    in_cache = temporary < _SCRATCH_BYTES and _free_bytes(bucket) > temporary
    try:
        if in_cache:
            folder = tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=bucket)
        else:
            folder = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX)
    except OSError as error:
        raise StorageError(str(error)) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_fallback_folder() -> tuple[Path, int]:
    """A folder for this process's life, with the descriptor that shows the process alive."""
    folder = Path(tempfile.mkdtemp(prefix=_FALLBACK_PREFIX))
    owner = os.open(folder / OWNER_FILE, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder, owner


def entries(folder: Path) -> list[Path]:
    """The entries of a cache folder, also those of which only the checksum is left."""
    found = dict.fromkeys(
        item.with_name(item.name.removesuffix(CHECKSUM_SUFFIX))
        for item in _contents(folder)
        if _ENTRY.fullmatch(item.name) and not item.name.endswith(LOCK_SUFFIX)
    )
    return sorted(found)


def size_bytes(folder: Path) -> int:
    """Bytes of all that the cache has put into a folder."""
    total = 0
    for item in _contents(folder):
        for file in (item, *item.rglob("*")) if item.is_dir() else (item,):
            total += _size(file)
    return total


def size_of(path: Path) -> int:
    """Bytes of an entry, its checksum included; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return _size(path) + _size(Path(f"{path}{CHECKSUM_SUFFIX}"))
    return 0


def evict(folder: Path, max_bytes: int, keep: Path) -> int:
    """Delete the entries that were used longest ago, until the rest fits in `max_bytes`.

    The entry `keep` stays. Returns the bytes that are left.
    """
    used: list[tuple[float, int, Path]] = []
    for path in entries(folder):
        with contextlib.suppress(OSError):
            used.append((path.stat().st_mtime if path.exists() else 0.0, size_of(path), path))
    total = sum(size for _, size, _ in used)
    for _, size, path in sorted(used):
        if total <= max_bytes:
            break
        if path != keep and remove(path):
            total -= size
    return total


def sweep(folder: Path) -> int:
    """Delete what killed processes left in a cache folder and in the temporary folder.

    Returns how many files and folders went.
    """
    removed = 0
    for item in _contents(folder):
        if item.name.endswith(LOCK_SUFFIX):
            removed += _delete_unheld(item)
        elif _STAGING.fullmatch(item.name) and _is_stale(item):
            removed += _delete(item)
    for item in _temporary_items():
        if _SCRATCH.fullmatch(item.name):
            abandoned = _is_stale(item)
        elif _FALLBACK.fullmatch(item.name):
            abandoned = _is_stale(item) and bool(_delete_unheld(item / OWNER_FILE))
        else:
            continue
        removed += _delete(item) if abandoned else 0
    return removed


def _contents(folder: Path) -> list[Path]:
    """What the cache has put into the buckets of a folder."""
    buckets = (bucket for bucket in _listed(folder) if _BUCKET.fullmatch(bucket.name))
    return [
        item
        for bucket in buckets
        for item in _listed(bucket)
        if _ENTRY.fullmatch(item.name) or _STAGING.fullmatch(item.name)
    ]


def _temporary_items() -> list[Path]:
    try:
        return _listed(Path(tempfile.gettempdir()))
    except OSError:  # no folder for temporary files can be written
        return []


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_stale(path: Path) -> bool:
    """Whether a folder of this user's has not changed for long."""
    try:
        status = path.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return mine and time.time() - status.st_mtime > _STALE_SECONDS


def _delete(path: Path) -> int:
    """Delete a file or a folder; return 1 if it is gone for that."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return 0
    return 1


def _delete_unheld(lock_file: Path) -> int:
    """Delete a lock file that no living process holds; return 1 if it went."""
    try:
        descriptor = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except IsADirectoryError:
        return _delete(lock_file)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock_file.unlink()
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return 1


def _make_bucket(bucket: Path) -> None:
    try:
        bucket.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        if not _BUCKET.fullmatch(bucket.name):
            raise
        bucket.unlink()  # something put a file where the cache keeps a folder
        bucket.mkdir()


def _remove_folder(path: Path) -> None:
    """Make way for a file where something has made a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def _free_bytes(folder: Path | None) -> int:
    try:
        return shutil.disk_usage(tempfile.gettempdir() if folder is None else folder).free
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _checksum(path: Path) -> str:
    with _open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _open(path: Path) -> Iterator[io.BufferedReader]:
    """A regular file for reading; a named pipe would hold the reader for ever."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file
