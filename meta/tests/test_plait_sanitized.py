"""A dozen programs under the sanitizers, where g++ has them; the suites are in `sanitized`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from sanitized.running import libraries, run

SAMPLE = Path(__file__).parents[1] / "sanitized" / "sample.py"
pytestmark = pytest.mark.skipif(not libraries(), reason="g++ has no sanitizers here")
QUICK = {"PLAIT_NATIVE_GUARDS": "0", "PLAIT_CXX_OPTIMIZATION": "-O0", "PLAIT_VERIFY": "0"}


def test_generated_code_neither_leaves_its_buffers_nor_relies_on_what_is_undefined(tmp_path):
    status, found = run(tmp_path, [str(SAMPLE)], tmp_path, QUICK)
    assert status == 0
    assert not found, "\n".join(found)


@pytest.mark.slow
def test_a_temporary_that_is_too_short_is_found(tmp_path):
    status, found = run(tmp_path, [str(SAMPLE), "broken"], tmp_path, QUICK)
    assert any("heap-buffer-overflow" in each for each in found), (status, found)
