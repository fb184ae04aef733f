"""Where the parts of the repository lie that the suite uses, and which are in no package."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOWERING = ROOT / "packages" / "ir-lowering"
TRACER = ROOT / "packages" / "bytecode-tracer"


def caches_in(folder: str) -> dict[str, str]:
    """An environment whose compilers keep what they make in a folder."""
    names = "PLAIT", "TORCHINDUCTOR", "TRITON"
    return {f"{name}_CACHE_DIR": str(Path(folder) / name.lower()) for name in names}


def find_suites() -> None:
    """Make `operators`, `suites` and `benchmarks` importable in this process."""
    sys.path[:0] = [str(each) for each in (LOWERING, TRACER, ROOT) if str(each) not in sys.path]
