"""The command line of what is measured on a GPU."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


def parser(module: str, description: str | None, systems: Iterable[str]) -> argparse.ArgumentParser:
    """One that takes parts of the names of rows, systems, and where the table is written to.

    Args:
        module: of `benchmarks`, by which it is run.
        description: what it measures.
        systems: those that can be chosen; all are measured by default.
    """
    known = list(systems)
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=description)
    made.add_argument("names", nargs="*", help="parts of the names of rows; all if none")
    made.add_argument("--systems", nargs="+", choices=known, default=known)
    made.add_argument("--markdown", type=Path, help="write the table to this file")
    return made


def add_seconds(made: argparse.ArgumentParser, seconds: float) -> None:
    """Let it be said how long each row is measured."""
    made.add_argument("--seconds", type=float, default=seconds, help="for each row")


def add_json(made: argparse.ArgumentParser) -> None:
    """Let the numbers be kept, too."""
    made.add_argument("--json", type=Path, help="write the results to this file")


def chosen(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    """The names that hold one of these parts; all if there are none."""
    return [name for name in names if not parts or any(part in name for part in parts)]


def show(results: Any, markdown: Callable[[Any], str], options: argparse.Namespace) -> None:
    """Print a table of results, and write both where that is asked for."""
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    text = markdown(results)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
