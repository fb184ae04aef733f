"""`mode="max-autotune"` with Triton: blocks of all kernels, at the sizes at hand, in the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json
import torch, plait
import plait_triton_codegen.tuning as tuning

timed = []
def times(runs):
    timed.append(len(runs))
    first, *others = runs
    return {tile: [0.002 if tile == first else 0.001 + 1e-5 * n] * 7 for n, tile in enumerate(runs)}
tuning.kernel_times = lambda device: times

def rows(x, g):
    return torch.softmax(x * g, -1), x.t().contiguous() + 1

def placed(x, index):
    return x[index] * 2

generator = torch.Generator().manual_seed(0)
x, g = torch.randn(4, 300, generator=generator), torch.randn(300, generator=generator)
index = torch.tensor([3, 0, 1, 3, -1])
CASES = {
    "known": (rows, (x, g), {}),
    "open": (rows, (x, g), {"dynamic": True}),
    "indices": (placed, (x, index), {}),
    "strict": (rows, (x, g), {"numerics": "strict"}),
    "default": (rows, (x, g), {"mode": "default"}),
}
for name, (function, inputs, options) in CASES.items():
    before, state = [each.clone() for each in inputs], torch.get_rng_state()
    for _ in range(2):
        given = {"mode": "max-autotune", **options}
        fast = plait.compile(function, backend="triton", options={"warm_start": False}, **given)
        torch.testing.assert_close(fast(*inputs), function(*inputs))
        (graph,) = plait.report(fast).graphs
        found = [each.from_cache for each in graph.tuned]
        lines = str(plait.report(fast)).splitlines()
        told = sum(line.startswith("  tuned") and "instead of" in line for line in lines)
        print(json.dumps([name, found, len(timed), told]))
    if name == "open":
        more, gains = x.repeat(2, 5), g.repeat(5)
        torch.testing.assert_close(fast(more, gains), rows(more, gains))
        assert len(plait.report(fast).graphs) == 1
    assert all(map(torch.equal, inputs, before)) and torch.equal(state, torch.get_rng_state())
try:
    fast = plait.compile(placed, backend="triton", mode="max-autotune")
    fast(x, torch.tensor([4]))
except IndexError:
    print("raised")
"""


def test_kernels_are_tuned_once_for_the_sizes_at_hand_and_stay_right(tmp_path) -> None:
    pytest.importorskip("triton", reason="the Triton backend is optional")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PLAIT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *lines, last = done.stdout.splitlines()
    assert last == "raised"
    found = [json.loads(line) for line in lines]
    assert [each[0] for each in found[::2]] == ["known", "open", "indices", "strict", "default"]
    timed = 0
    for name, from_cache, count, told in found[:6:2]:
        assert from_cache
        assert not any(from_cache), name
        assert (count, told) == (timed + 2 * len(from_cache), len(from_cache)), name
        timed = count
    for (name, known, count, told), again in zip(found[:6:2], found[1:6:2], strict=True):
        assert again == [name, [True] * len(known), count, told]  # nothing was timed again
    for each in found[6:]:
        assert each[1:] == [[], timed, 0]
