"""Kernels that may start while the one before them ends are launched so.

`test_cpp_device_host.py` runs this in a process of its own, as the driver is another one there.
"""

from __future__ import annotations

import pytest
from mock_gpu import GPU, Graphs, built, fresh
from mock_gpu_programs import MANY, MANY_KERNELS, RECORDED, check, many, matrices

_gpu = pytest.fixture(autouse=True)(fresh)


@pytest.mark.parametrize(
    ("overlapping", "count"), [((), 0), (("twice", "sum"), 0), (tuple(MANY_KERNELS), 1)]
)
def test_those_kernels_of_many_programs_overlap_that_wait_by_themselves(
    overlapping: tuple[str, ...], count: int
) -> None:
    run, given = built(MANY, MANY_KERNELS, overlapping=overlapping), matrices()
    for _ in range(3):
        before = GPU.mock_overlapping()
        check(run(*given), many(*given))
        assert GPU.mock_overlapping() - before == count


def test_they_do_so_in_what_is_recorded() -> None:
    graphs = Graphs(0)
    run = built(RECORDED, MANY_KERNELS, graphs=graphs, overlapping=tuple(MANY_KERNELS))
    given, before, counts = matrices(), GPU.mock_overlapping(), []
    for _ in range(8):
        check(run(*given), many(*given, recorded=True))
        counts.append(GPU.mock_overlapping() - before)
    assert graphs.recordings > 0, graphs.reason
    assert counts[:3] == [1, 2, 3]  # two are launched, the third is recorded
    assert counts[-1] == counts[-2] < 8, "what is recorded is launched as one"
