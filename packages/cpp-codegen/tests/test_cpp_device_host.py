"""Programs of a GPU run by the native host, without a GPU.

See `CASES`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = (
    *("mock_gpu_cases.py", "mock_graph_cases.py", "mock_given_cases.py", "mock_gpu_writes.py"),
    *("mock_mixed_cases.py", "mock_optimizer_cases.py", "mock_overlap_cases.py"),
)
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="is built by g++ on Linux"
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "lazy", [pytest.param("0", marks=pytest.mark.slow, id="eager"), pytest.param("1", id="lazy")]
)
@pytest.mark.parametrize("cases", CASES)
def test_on_a_gpu_of_the_hosts_memory(cases: str, lazy: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:xdist", str(HERE / cases)],
        capture_output=True,
        text=True,
        env=os.environ
        | {"MOCK_GPU_LAZY": lazy, "PYTHONFAULTHANDLER": "1", "TMPDIR": str(tmp_path)}
        | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
