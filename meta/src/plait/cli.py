"""The command line: `python -m plait info`, `python -m plait cache clear`."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Sequence

from plait_utils import DiskCache, PlaitError

_DISTRIBUTIONS = (
    "plait",
    "plait-utils",
    "plait-bytecode-tracer",
    "plait-fx-passes",
    "plait-ir-lowering",
    "plait-scheduler",
    "plait-cpp-codegen",
    "plait-triton-codegen",
    "torch",
    "triton",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m plait", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, compiler, cache folder and its size")
    commands.add_parser("options", help="the options of plait.compile and what they mean")
    cache = commands.add_parser("cache", help="the cache of compiled programs")
    cache.add_argument("action", choices=("path", "size", "clear"))
    chosen = parser.parse_args(arguments)
    if chosen.command == "info":
        _print_info()
    elif chosen.command == "options":
        _print_options()
    else:
        _cache(chosen.action)
    return 0


def _print_info() -> None:
    rows = [("python", platform.python_version())]
    rows += [(name, _version(name)) for name in _DISTRIBUTIONS]
    rows += [("C++ compiler", _compiler()), ("cache folder", str(DiskCache().root))]
    rows.append(("cache size", _megabytes(DiskCache().size_bytes())))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _compiler() -> str:
    from plait_cpp_codegen import CppOptions, find_toolchain

    try:
        found = find_toolchain(CppOptions.from_env())
    except PlaitError as error:
        return f"none: {error.message}" + (f" ({error.hint})" if error.hint else "")
    return f"{found.path} ({found.version})"


def _print_options() -> None:
    from plait.options import CompileOptions
    from plait_cpp_codegen import CppOptions
    from plait_scheduler import SchedulerOptions

    print(CompileOptions.describe())
    for group, kind in (("scheduler", SchedulerOptions), ("cpp", CppOptions)):
        for line in kind.describe().splitlines():
            print(f"{group}.{line}")


def _cache(action: str) -> None:
    cache = DiskCache()
    if action == "path":
        print(cache.root)
    elif action == "size":
        print(_megabytes(cache.size_bytes()))
    else:
        size = cache.size_bytes()
        removed = cache.clear()
        print(f"removed {removed} files, {_megabytes(size)}, from {cache.root}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
