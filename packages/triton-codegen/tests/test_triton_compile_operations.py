"""Every operation and reduction compiles for three GPUs, for each type that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_compiled import compiled, crowding, spilling

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"]),
]


def test_every_operation_compiles(tmp_path: Path, target: str) -> None:
    found = compiled("operations", tmp_path, target)
    assert {name for name, kernel in found.items() if not kernel["code"]} == set()
    # libdevice's sines of f64 keep an array, by which they reduce large angles: of 40 bytes, or
    # of 48 by Triton 3.6
    assert spilling(found, target, usual=48) == {}
    assert crowding(found) == {}


def test_every_reduction_compiles(tmp_path: Path, target: str) -> None:
    found = compiled("reductions", tmp_path, target)
    # LLVM leaves an unused byte of stack, rounded up to 8, where it packs bools
    assert spilling(found, target, usual=8) == {}
    assert crowding(found) == {}
