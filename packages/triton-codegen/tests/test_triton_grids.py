"""Launches of more points than 32 bits count: how many programs, and offsets of 64 bits."""

from __future__ import annotations

import re

import pytest
import triton_kernels as kernels

from plait_triton_codegen import TritonKernelSource, UnsupportedKernelError, render_kernel
from plait_triton_codegen.kernels import Tile

MOST = 2**31 - 1


def _programs(source: TritonKernelSource) -> int:
    found = re.search(r"\[\((\d+),\)\]", source.launcher)
    assert found is not None
    return int(found[1])


LARGE = {
    "pointwise": kernels.swiglu(2**16, 2**15 + 64, "bf16"),
    "pointwise of 2^42": kernels.swiglu(2**22, 2**20, "bf16"),
    "short rows": kernels.softmax(2**32, 8, "bf16"),
    "rows in registers": kernels.softmax(2**32, 1000, "bf16"),
    "rows in loops": kernels.softmax(2**33, 100_000, "bf16"),
    "columns": kernels.column_sum(1000, 2**34, "bf16"),
    "transposed": kernels.transpose_add(2**24, 2**20, "bf16"),
    "scans": kernels.running_sum(2**32, 10_000),
    "scatters": kernels.embedding_backward(2**20, 2**20, 2**14),
}


@pytest.mark.parametrize("name", LARGE)
def test_one_launch_takes_all_programs_and_they_count_in_64_bits(name: str) -> None:
    source = render_kernel(LARGE[name])
    assert 0 < _programs(source) <= MOST
    assert "tl.program_id(0).to(tl.int64)" in source.text
    extents = [extent.as_int() for extent, _ in source.blocks]
    covered = _programs(source)
    for _, block in source.blocks:
        covered *= block
    points = 1
    for extent in extents:
        points *= extent
    assert covered >= points


def test_points_that_32_bits_count_take_32() -> None:
    source = render_kernel(kernels.swiglu(2**15, 2**15, "bf16"))
    assert "int64" not in source.text


def test_a_tile_that_is_given_is_not_changed() -> None:
    with pytest.raises(UnsupportedKernelError, match="4294967296 programs are more"):
        render_kernel(kernels.softmax(2**32, 1000), tile=Tile(1, 1024, 4, True))
