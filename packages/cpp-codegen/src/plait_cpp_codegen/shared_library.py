"""Shared libraries: checked before they are loaded, taken from the cache, rebuilt if bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from plait_cpp_codegen.errors import CompilationError
from plait_utils import DiskCache, find_library_damage, get_logger

_HINT = (
    "Check that the compiler builds for this machine, and that PLAIT_CACHE_DIR lies where "
    "programs may be run (not mounted noexec)."
)

Loaded = TypeVar("Loaded")


def load_cached(
    cache: DiskCache,
    key: str,
    compile: Callable[[Path], None],
    symbol: str,
    load: Callable[[Path], Loaded],
) -> tuple[Loaded, bool]:
    """A library of the cache, loaded, and whether it was there; compiled if it was not.

    One that was there and cannot be loaded is compiled anew, once. None that cannot be
    loaded stays in the cache.

    Args:
        compile: writes the library into the file it is given.
        symbol: what the library must define.
        load: opens a file; raises ImportError.

    Raises CompilationError, and whatever `compile` raises.
    """
    compiled = False

    def make(output: Path) -> None:
        nonlocal compiled
        compiled = True
        compile(output)

    def open_it() -> Loaded:
        path = cache.get_or_build(key, ".so", make)
        try:
            damage = find_library_damage(path, symbol)
            if damage is not None:
                raise ImportError(damage)
            return load(path)
        except (ImportError, OSError) as error:
            cache.remove(key, ".so")
            raise CompilationError(
                f"the compiler made a library that does not load: {error}", hint=_HINT
            ) from error

    try:
        return open_it(), not compiled
    except CompilationError as error:
        if compiled:
            raise
        get_logger("cpp").info("compiling again: %s", error.message)
    return open_it(), False
