"""Scans: of whole rows in registers, of longer ones block by block, of few rows in chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton_kernels as kernels
from triton_checks import agrees_with_eager, gpu_program, launches, reference, run

from plait_scheduler import parse_kernel
from plait_triton_codegen import Tile, TritonOptions, render_kernel
from plait_utils import DiskCache

LOOPED = Tile(2, 16, 1, False)


def agrees(kernel, x: torch.Tensor, tile: Tile | None = None) -> None:
    for ours, theirs in zip(run(kernel, x, tile=tile), reference(kernel, x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def running_sum(rows: int, columns: int, *, down: bool = False):
    at, shape = ("r0, i0", [columns, rows]) if down else ("i0, r0", [rows, columns])
    return parse_kernel(f"""kernel k(p0: read f32{shape}, p1: write f32{shape})
  for i0: {rows} inner r0: {columns}
    inner t0 = p0[{at}]
    scan t1: f64
      join add(%a0, %b0) along to(exp(%t0), f64)
    inner store p1[{at}] = sub(to(%t1, f32), %t0)""")


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (5, 9), (1, 33), (40, 3), (3, 1)])
@pytest.mark.parametrize("down", [False, True])
def test_running_sums(rows, columns, down):
    shape = (columns, rows) if down else (rows, columns)
    agrees(running_sum(rows, columns, down=down), torch.randn(shape))


@pytest.mark.parametrize("tile", [None, LOOPED])
def test_what_is_carried_may_be_several_values(tile):
    x = torch.randn(6, 90)
    x[2, 30] = x[4, 0] = float("nan")
    agrees(kernels.running_maximum(6, 90), x, tile)


@pytest.mark.parametrize(("rows", "columns"), [(4, 100), (5, 64), (1, 33), (40, 129), (3, 1)])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("tile", [LOOPED, Tile(1, 32, 1, False)])
def test_rows_too_long_for_registers_are_scanned_block_by_block(rows, columns, down, tile):
    shape = (columns, rows) if down else (rows, columns)
    agrees(running_sum(rows, columns, down=down), torch.randn(shape) / 4, tile)


def test_a_state_goes_to_the_next_block_to_the_bit():
    """Products of -0.0 stay negative."""
    kernel = parse_kernel("""kernel k(p0: read f32[2, 64], p1: write f32[2, 64])
  for i0: 2 inner r0: 64
    scan t0: f32
      join mul(%a0, %b0) along p0[i0, r0]
    inner store p1[i0, r0] = %t0""")
    x = torch.ones(2, 64)
    x[0, 3], x[1, 5] = -0.0, float("nan")
    (found,) = run(kernel, x, tile=LOOPED)
    assert bool(found[0, 3:].signbit().all())
    assert bool(found[1, 5:].isnan().all())


def test_blocks_are_as_large_as_what_is_carried_allows():
    one = render_kernel(kernels.running_sum(4096, 32768)).tile
    two = render_kernel(kernels.running_maximum(4096, 32768)).tile
    assert (one.rblock, one.num_warps) == (4096, 8)
    assert (two.rblock, two.num_warps) == (1024, 4)


def test_a_scan_that_a_later_pass_needs_runs_again():
    kernel = parse_kernel("""kernel k(p0: read f32[6, 90], p1: write f32[6, 90], p2: write f32[6])
  for i0: 6 inner r0: 90
    inner t0 = exp(p0[i0, r0])
    scan t1: f32
      join add(%a0, %b0) along add(%t0, f32(1.0))
    reduce t2 = sum %t1
    outer store p2[i0] = %t2
    inner store p1[i0, r0] = div(%t1, %t2)""")
    agrees(kernel, torch.randn(6, 90), LOOPED)
    assert render_kernel(kernel, tile=LOOPED).text.count("tl.associative_scan") == 2


def test_long_rows_are_looped_over():
    source = render_kernel(running_sum(4000, 100_000))
    assert not source.tile.persistent
    assert "for start in range(0, 100000, RBLOCK)" in source.text
    columns = render_kernel(running_sum(4000, 100_000, down=True))
    assert columns.tile.xblock >= 16
    assert not columns.tile.persistent
    short = render_kernel(running_sum(4, 100), TritonOptions(max_persistent=64))
    assert not short.tile.persistent


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


CHUNKED = {
    "one row": (lambda x: x.cumsum(1), (1, 8192), torch.float32),
    "of odd factors": (lambda x: x.cumsum(-1), (2, 5000), torch.float32),
    "bf16": (lambda x: x.cumsum(-1), (2, 5000), torch.bfloat16),
    "integers": (lambda x: x.cumsum(-1), (2, 5000), torch.int32),
    "products": (lambda x: (x / 100 + 1).cumprod(-1), (2, 5000), torch.float32),
    "columns": (lambda x: (x * 2).cumsum(0).relu(), (5000, 3), torch.float32),
    "in the middle": (lambda x: x.cumsum(1), (2, 5000, 2), torch.float32),
}


@pytest.mark.parametrize("name", CHUNKED)
def test_few_long_rows_are_scanned_in_chunks(cache: DiskCache, name: str) -> None:
    function, size, dtype = CHUNKED[name]
    x = (torch.randn(size) * 9).to(dtype)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-3
    agrees_with_eager(cache, function, x, tolerance=tolerance)
    assert launches(gpu_program(function, x)) == 3


@pytest.mark.parametrize(
    ("size", "scans"), [((1, 1 << 24), 2), ((4096, 32768), 1), ((1, 1 << 26), 2), ((2, 9973), 0)]
)
def test_how_long_rows_are_scanned_on_a_gpu(size: tuple[int, int], scans: int) -> None:
    """Many rows by one kernel; few in chunks, which have to divide them; else by ATen."""
    with torch.device("meta"):
        program = gpu_program(lambda x: x.cumsum(1), torch.empty(size))
    assert sum("scan" in kernel.name for kernel in program.kernels) == scans
