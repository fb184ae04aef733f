"""The command line: `plait info`, `doctor`, `lint`, `minify`, `options`, `cache`."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from collections.abc import Sequence

from plait.cache_cli import add_cache_command, megabytes, run_cache_command
from plait.errors import OptionError
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
    """Run the command line; returns the exit status.

    `lint` exits with 1 where it finds graph breaks, `minify` where it finds failures, `doctor`
    where something does not work; all with 2 where they cannot look.
    """
    parser = argparse.ArgumentParser(prog="plait", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, compiler, cache folder and its size")
    commands.add_parser("doctor", help="whether all that plait needs is there and works")
    commands.add_parser("options", help="the options of plait.compile and what they mean")
    add_cache_command(commands)
    linter = commands.add_parser("lint", help="the graph breaks of a call; 1 if there are any")
    linter.add_argument("target", help="module:function or file.py:function; returns (model, args)")
    linter.add_argument("--json", action="store_true", help="print the report as JSON")
    linter.add_argument(
        "--allow", action="append", default=[], metavar="CODE", help="a break that is meant: GB0005"
    )
    minifier = commands.add_parser("minify", help="small scripts of what a call compiles wrongly")
    minifier.add_argument("target", help="module:function or file.py:function, as for lint")
    minifier.add_argument("--folder", default="plait-minified", help="where to write the scripts")
    chosen = parser.parse_args(arguments)
    if chosen.command == "minify":
        return _minify(chosen.target, chosen.folder)
    if chosen.command == "lint":
        return _lint(chosen.target, chosen.allow, as_json=chosen.json)
    if chosen.command == "cache":
        return run_cache_command(chosen)
    if chosen.command == "doctor":
        return _doctor()
    if chosen.command == "info":
        _print_info()
    else:
        _print_options()
    return 0


def _doctor() -> int:
    import rich

    from plait.doctor import examine

    diagnosis = examine()
    rich.print(diagnosis)
    return 1 if diagnosis.is_broken else 0


def _lint(target: str, allowed: Sequence[str], *, as_json: bool) -> int:
    from plait.lint import lint_target

    try:
        report = lint_target(target).without(allowed)
    except OptionError as error:
        print(error, file=sys.stderr)
        return 2
    print(report.to_json() if as_json else report)
    return report.exit_status


def _minify(target: str, folder: str) -> int:
    from plait.minify import minify_target

    try:
        scripts = minify_target(target, folder)
    except PlaitError as error:
        print(error, file=sys.stderr)
        return 2
    for script in scripts:
        print(script)
    if not scripts:
        print("every graph of the call does what eager does")
    return 1 if scripts else 0


def _print_info() -> None:
    rows = [("python", platform.python_version())]
    rows += [(name, _version(name)) for name in _DISTRIBUTIONS]
    rows += [("C++ compiler", _compiler()), ("cache folder", str(DiskCache().root))]
    rows.append(("cache size", megabytes(DiskCache().size_bytes())))
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
