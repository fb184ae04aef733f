"""Every operation and reduction compiles for sm_90, for each type that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_compiled import compiled


@pytest.mark.slow
def test_every_operation_compiles(tmp_path: Path) -> None:
    found = compiled("operations", tmp_path)
    assert {name for name, kernel in found.items() if not kernel["code"]} == set()


@pytest.mark.slow
def test_every_reduction_compiles(tmp_path: Path) -> None:
    found = compiled("reductions", tmp_path)
    # LLVM leaves an unused byte of stack, rounded up to 8, where it packs bools
    assert {name: k["spills"] for name, k in found.items() if k["spills"] > 8} == {}
