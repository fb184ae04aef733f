"""Generated Python modules: stored as files, because Triton reads kernels from their file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from plait_triton_codegen._version import __version__
from plait_utils import DiskCache, stable_hash


@dataclass(frozen=True, slots=True)
class GeneratedModule:
    """A module that was run; it is not entered in `sys.modules`."""

    key: str
    """Depends on the text alone."""
    path: Path
    names: dict[str, object] = field(repr=False)


def module_key(text: str) -> str:
    """The name that a module is stored under; it depends on the text alone."""
    return stable_hash("triton module", __version__, text)


def load_module(text: str, cache: DiskCache | None = None) -> GeneratedModule:
    """Store `text` in the cache, unless it is there, and run it as a module."""
    key = module_key(text)
    store = DiskCache() if cache is None else cache
    path = store.get_or_build(key, ".py", lambda file: _write(file, text))
    names: dict[str, object] = {"__name__": f"plait_triton_{key[:16]}", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    return GeneratedModule(key, path, names)


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
