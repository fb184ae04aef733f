"""Finds the files of cases, and executes them anew for each side of each case."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.declare import CASES, Case

FOLDER = Path(__file__).parent / "cases"


def topics() -> list[str]:
    """The names of all files of cases."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


@functools.cache
def _code(topic: str) -> types.CodeType:
    path = FOLDER / f"{topic}.py"
    return compile(path.read_text(), str(path), "exec")


@contextmanager
def loaded(topic: str) -> Iterator[types.ModuleType]:
    """The module of a topic, executed freshly, and in `sys.modules` while it is used."""
    name = f"conformance.cases.{topic}"
    module = types.ModuleType(name)
    module.__file__ = str(FOLDER / f"{topic}.py")
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(_code(topic), module.__dict__)
        yield module
    finally:
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before


def missing_requirement(topic: str) -> str | None:
    """The first package that a topic names in `REQUIRES` and that is not installed."""
    for statement in ast.parse((FOLDER / f"{topic}.py").read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="REQUIRES")], value=value):
                names = ast.literal_eval(value)
                return next((name for name in names if not _importable(name)), None)
    return None


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package that the name is in
        return False


def cases_of(topic: str) -> list[Case]:
    """The cases of a topic in the order of its file."""
    with loaded(topic) as module:
        return list(getattr(module, CASES, {}).values())
