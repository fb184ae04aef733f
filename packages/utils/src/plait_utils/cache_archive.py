"""A cache's entries in one file, to be taken to another machine.

The file is a ZIP archive of the entries and of `manifest.json`, which says of each how many bytes
it has and their SHA-256, and what of a machine the entries depend on. All of that is checked before
anything is put into a cache. Entries may be machine code: take archives only from who may run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait_utils import cache_files
from plait_utils.cache import DiskCache
from plait_utils.errors import PlaitError, shown
from plait_utils.records import dataclass

_FORMAT = 1
_MANIFEST = "manifest.json"
_MANIFEST_BYTES = 64 << 20
_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{30,64}\.[\w.]+")
_HASH = re.compile(r"[0-9a-f]{64}")
_NOT_ENTRIES = (cache_files.CHECKSUM_SUFFIX, cache_files.LOCK_SUFFIX)


class CacheArchiveError(PlaitError):
    """A file that is no archive of a cache, is damaged, or is of another kind of machine."""


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """What went into an archive, or from one into a cache."""

    entries: int
    nbytes: int
    known: int = 0
    """Entries that the cache had already."""


@dataclass(frozen=True, slots=True)
class _Entry:
    nbytes: int
    sha256: str


def export_cache(cache: DiskCache, file: Path, machine: Mapping[str, str]) -> ArchiveResult:
    """Write all sound entries of a cache into an archive; an existing file is replaced.

    Args:
        machine: what of this machine the entries depend on, by name.

    Raises CacheArchiveError where the file cannot be written.
    """
    folder = file.absolute().parent
    found: dict[str, _Entry] = {}
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f"{file.name}.", dir=folder)
        os.close(descriptor)
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in cache_files.entries(cache.root):
                    _add(archive, path, found)
                archive.writestr(_MANIFEST, _manifest(found, machine))
            os.replace(temporary, file)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as error:
        raise CacheArchiveError(f"cannot write {file}: {error}") from error
    return ArchiveResult(len(found), sum(each.nbytes for each in found.values()))


def _add(archive: zipfile.ZipFile, path: Path, found: dict[str, _Entry]) -> None:
    if not cache_files.is_sound(path):
        return
    try:
        data = path.read_bytes()
    except OSError:  # another process has just deleted it
        return
    name = f"{path.parent.name}/{path.name}"
    found[name] = _Entry(len(data), hashlib.sha256(data).hexdigest())
    archive.writestr(name, data)


def _manifest(found: Mapping[str, _Entry], machine: Mapping[str, str]) -> str:
    entries = {name: {"bytes": e.nbytes, "sha256": e.sha256} for name, e in found.items()}
    return json.dumps({"format": _FORMAT, "machine": dict(machine), "entries": entries}, indent=1)


def import_cache(cache: DiskCache, file: Path, machine: Mapping[str, str]) -> ArchiveResult:
    """Put the entries of an archive into a cache.

    Args:
        machine: what of this machine entries depend on, by name; the archive's must be the same.

    Raises CacheArchiveError, and then has put nothing there, for a file that is no archive or
    damaged, for one of a machine that differs (it says in what), or where the cache cannot be
    written.
    """
    try:
        with (
            zipfile.ZipFile(file) as archive,
            tempfile.TemporaryDirectory(prefix="plait-import-") as folder,
        ):
            theirs, entries = _read_manifest(archive)
            _refuse_other_machine(theirs, machine)
            _refuse_too_large(cache, entries)
            checked = [
                (name, _extract(archive, name, entry, Path(folder) / str(number)))
                for number, (name, entry) in enumerate(entries.items())
            ]
            return _install(cache, checked)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError) as error:
        raise CacheArchiveError(f"{file} is no archive of a cache: {error}") from error
    except (OSError, EOFError) as error:
        raise CacheArchiveError(f"cannot import {file}: {error}") from error


def _read_manifest(archive: zipfile.ZipFile) -> tuple[dict[str, str], dict[str, _Entry]]:
    try:
        with archive.open(_MANIFEST) as stream:
            text = stream.read(_MANIFEST_BYTES + 1)
        found = json.loads(text) if len(text) <= _MANIFEST_BYTES else None
    except (KeyError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CacheArchiveError(f"the archive has no readable {_MANIFEST}")
    if found.get("format") != _FORMAT:
        raise CacheArchiveError(
            f"the archive has format {shown(found.get('format'))}; this version reads {_FORMAT}",
            hint="Export it with the version of plait that is to import it.",
        )
    machine, entries = found.get("machine"), found.get("entries")
    if not isinstance(machine, dict) or not isinstance(entries, dict):
        raise CacheArchiveError(f"the archive's {_MANIFEST} lacks its machine or its entries")
    told = {name: str(value) for name, value in machine.items()}
    return told, {name: _entry(name, facts) for name, facts in entries.items()}


def _entry(name: str, facts: Any) -> _Entry:
    nbytes = facts.get("bytes") if isinstance(facts, dict) else None
    sha256 = facts.get("sha256") if isinstance(facts, dict) else None
    is_entry = _NAME.fullmatch(name) and not name.endswith(_NOT_ENTRIES)
    is_size = type(nbytes) is int and nbytes >= 0
    if not (is_entry and is_size and isinstance(sha256, str) and _HASH.fullmatch(sha256)):
        raise CacheArchiveError(f"the archive lists {shown(name)}, which is no entry of a cache")
    assert isinstance(nbytes, int)
    return _Entry(nbytes, sha256)


def _refuse_other_machine(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    for name in [*dict.fromkeys([*theirs, *ours])]:
        there, here = theirs.get(name, ""), ours.get(name, "")
        if there != here:
            raise CacheArchiveError(
                f"the archive's programs are for another machine: {name} "
                f"{_difference(there, here)}",
                hint="Programs use all that the processor offers on which they are compiled; "
                "compile them on a machine like this one.",
            )


def _difference(there: str, here: str) -> str:
    """What one text has and the other lacks, by words where they have many."""
    theirs, ours = there.split(), here.split()
    if max(len(theirs), len(ours)) <= 3:
        return f"is {there or 'not told'} there and {here or 'not told'} here"
    lacks = [word for word in theirs if word not in ours]
    more = [word for word in ours if word not in theirs]
    parts = [f"here lacks {' '.join(lacks)}"] if lacks else []
    parts += [f"here also has {' '.join(more)}"] if more else []
    return "; ".join(parts) or "differs in its order"


def _refuse_too_large(cache: DiskCache, entries: Mapping[str, _Entry]) -> None:
    total = sum(each.nbytes for each in entries.values())
    if total > cache.max_bytes:
        raise CacheArchiveError(
            f"the archive holds {total / 1e6:.0f} MB, the cache {cache.max_bytes / 1e6:.0f} at most"
        )


def _extract(archive: zipfile.ZipFile, name: str, entry: _Entry, to: Path) -> Path:
    """The entry as a file, checked."""
    try:
        with archive.open(name) as stream:
            data = stream.read(entry.nbytes + 1)
    except KeyError:
        raise CacheArchiveError(f"the archive lists {name} and does not hold it") from None
    except (zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise CacheArchiveError(f"the archive's {name} is damaged: {error}") from error
    if len(data) != entry.nbytes or hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CacheArchiveError(f"the archive's {name} is not what was exported")
    to.write_bytes(data)
    return to


def _install(cache: DiskCache, checked: list[tuple[str, Path]]) -> ArchiveResult:
    added = nbytes = 0
    for name, file in checked:
        path = cache.root / name
        try:
            with cache_files.locked(path):
                if cache_files.is_sound(path):
                    continue
                cache_files.install(file, path)
        except cache_files.StorageError as error:
            raise CacheArchiveError(f"the cache cannot be written: {error}") from error
        added, nbytes = added + 1, nbytes + file.stat().st_size
    return ArchiveResult(added, nbytes, len(checked) - added)
