"""Calls take no fresh pages from the system, whatever the results of the calls that they make."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import plait, torch
from torch import nn

torch.manual_seed(0)
model, size = {
    "linear": (nn.Linear(64, 30000), (320, 64)),
    "convolution": (nn.Conv2d(3, 64, 3, padding=1), (6, 3, 160, 160)),
    "channels": (nn.Conv2d(3, 64, 3, padding=1), (1, 3, 400, 400)),
}[sys.argv[1]]
x = torch.randn(size)
run = plait.compile(model.eval())
with torch.no_grad():
    y, expected = run(x), model(x)
    assert y.nbytes > 32 << 20, "so large that malloc gives it back"
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    assert y.stride() == expected.stride()
    del y, expected
    faults = []
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run(x)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
assert sorted(faults)[6] == 0, faults
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["linear", "convolution", "channels"])
def test_large_results_lie_in_memory_that_is_there(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
