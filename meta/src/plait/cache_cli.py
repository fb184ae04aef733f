"""`plait cache`: the cache of compiled programs, looked at, emptied, moved to another machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from plait_utils import DiskCache, PlaitError

if TYPE_CHECKING:
    from plait_utils.cache_archive import ArchiveResult

_KINDS = {".so": "programs", ".bin": "data"}


def add_cache_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cache` with its actions to a command line."""
    cache = commands.add_parser("cache", help="the cache of compiled programs")
    actions = cache.add_subparsers(dest="action", required=True)
    actions.add_parser("info", help="folder, entries, size, limit")
    actions.add_parser("path", help="the folder")
    actions.add_parser("size", help="megabytes")
    actions.add_parser("clear", help="delete all entries")
    actions.add_parser(
        "explain", help="the functions that are stored for a warm start, and what differs here"
    )
    out = actions.add_parser("export", help="write all entries into one file")
    out.add_argument("file", type=Path)
    into = actions.add_parser(
        "import", help="take entries from such a file, which may run code: trust who made it"
    )
    into.add_argument("file", type=Path)


def run_cache_command(chosen: argparse.Namespace) -> int:
    """Carry out one action; returns the exit status, 2 where it failed."""
    cache = DiskCache()
    try:
        if chosen.action == "export":
            _export(cache, chosen.file)
        elif chosen.action == "import":
            _import(cache, chosen.file)
        elif chosen.action == "explain":
            _explain(cache)
        elif chosen.action == "info":
            _print_info(cache)
        elif chosen.action == "path":
            print(cache.root)
        elif chosen.action == "size":
            print(megabytes(cache.size_bytes()))
        else:
            _clear(cache)
    except PlaitError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def megabytes(size: int) -> str:
    """Bytes as people read them."""
    return f"{size / 1e6:.2f} MB"


def _print_info(cache: DiskCache) -> None:
    found = cache.entries()
    kinds = Counter(_KINDS.get(path.suffix, path.suffix) for path in found)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"folder   {cache.root}")
    print(f"entries  {len(found)}" + (f" ({listed})" if listed else ""))
    print(f"size     {megabytes(cache.size_bytes())} of at most {megabytes(cache.max_bytes)}")
    used = [path.stat().st_mtime for path in found if path.exists()]
    if used:
        print(f"used     between {_day(min(used))} and {_day(max(used))}")


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _clear(cache: DiskCache) -> None:
    size = cache.size_bytes()
    removed = cache.clear()
    freed = megabytes(size - cache.size_bytes())
    print(f"removed {removed} files, {freed}, from {cache.root}")
    left = len(cache.entries())
    if left:
        raise PlaitError(
            f"{left} entries are still in {cache.root}",
            hint="The folder cannot be written, or other processes store what they compile.",
        )


def _explain(cache: DiskCache) -> None:
    """Of each function, whether the circumstances in which it was stored are those of here."""
    from plait.circumstances import facts_of_process
    from plait.differences import differences
    from plait.options import CompileOptions
    from plait.warm import stored_facts

    here = facts_of_process(CompileOptions.from_env())
    found = sorted(stored_facts(cache), key=lambda each: (each["file"], each["function"]))
    for facts in found:
        different = differences(facts, here)
        told = f"not restored here: {'; '.join(different)}" if different else "as it is here"
        print(f"{facts['function']} in {facts['file']}: {told}")
    if not found:
        print("nothing is stored for a warm start")


def _export(cache: DiskCache, file: Path) -> None:
    from plait_cpp_codegen import machine_facts
    from plait_utils.cache_archive import export_cache

    print(f"exported {_told(export_cache(cache, file, machine_facts()))} to {file}")


def _import(cache: DiskCache, file: Path) -> None:
    from plait_cpp_codegen import machine_facts
    from plait_utils.cache_archive import import_cache

    result = import_cache(cache, file, machine_facts())
    known = f"; {result.known} were there" if result.known else ""
    print(f"imported {_told(result)} into {cache.root}{known}")


def _told(result: ArchiveResult) -> str:
    return f"{result.entries} entries, {megabytes(result.nbytes)},"
