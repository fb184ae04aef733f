"""Programs of empty tensors compile, and give what eager gives, on both back ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("backend", ["plait", "triton"])
def test_empty_tensors(backend: str) -> None:
    """In a process of their own: what reads memory that is not there may end it."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "empty_programs.py"), backend],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stdout, done.stdout
