"""Histograms, and other counts of computed places: as they are lowered for a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_checks import DEVICE, gpu_program

from plait_ir_lowering import LoweringOptions
from plait_triton_codegen import TritonExecutable, TritonOptions, build, render_kernel
from plait_utils import DiskCache

FLOATS = (torch.float32, torch.float64)
NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8)
INTEGERS = (torch.int64, *NARROW)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def built(cache: DiskCache, function, *given: torch.Tensor) -> TritonExecutable:
    """A function's program for a GPU, by Triton's kernels alone."""
    executable = build(gpu_program(function, *given), cache=cache)
    assert executable.metadata["torch kernels"] == 0
    assert "aten." not in executable.source
    return executable


def on_gpu(x: torch.Tensor, bins: int, least: float, largest: float) -> torch.Tensor:
    """What ATen's kernel for GPUs gives: its arithmetic, element by element."""
    wide = x.flatten() if x.is_floating_point() else x.flatten().long()
    low, high = torch.tensor([least, largest], dtype=torch.float64).to(wide.dtype)
    wide = wide[(wide >= low) & (wide <= high)]
    scaled = (wide - low) * bins
    place = scaled / (high - low) if x.is_floating_point() else scaled // (high - low)
    counts = torch.bincount(place.long().clamp_max(bins - 1), minlength=bins)
    return counts.to(x.dtype)


def numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(0, 60, (count,)).to(dtype)
    x = torch.randn(count, dtype=dtype)
    ends = torch.tensor([float("nan"), float("inf"), -float("inf"), -1.0, 1.0, 0.0, -0.0, 1.0001])
    return torch.where(torch.rand(count) < 0.2, ends[torch.randint(0, 8, (count,))].to(dtype), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bins", [1, 2, 7, 10, 64, 100, 256])
def test_floats(cache: DiskCache, dtype: torch.dtype, bins: int) -> None:
    x = numbers(5000, dtype)
    executable = built(cache, lambda x: torch.histc(x, bins, -1, 1), x)
    (found,) = executable(x.to(DEVICE))
    assert found.dtype is dtype
    assert torch.equal(found.cpu(), on_gpu(x, bins, -1, 1))
    assert "tl.histogram" in executable.source


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(("bins", "least", "largest"), [(10, 0, 50), (7, 3, 20.9), (90, -5, 30)])
def test_integers(cache: DiskCache, dtype: torch.dtype, bins: int, least, largest) -> None:
    x = numbers(5000, dtype)
    (found,) = built(cache, lambda x: torch.histc(x, bins, least, largest), x)(x.to(DEVICE))
    assert found.dtype is dtype
    assert torch.equal(found.cpu(), on_gpu(x, bins, int(least), int(largest)))


@pytest.mark.parametrize("bins", [3, 10, 30, 49])
def test_ends_of_bins_are_in_the_bins_that_eager_has_them_in(cache: DiskCache, bins: int) -> None:
    """Whose quotients are rounded correctly, whatever is fast."""
    x = torch.linspace(-0.1, 0.7, bins + 1)
    x = torch.cat([x, x.nextafter(torch.tensor(9.0)), x.nextafter(torch.tensor(-9.0))]).repeat(20)
    (found,) = built(cache, lambda x: torch.histc(x, bins, -0.1, 0.7), x)(x.to(DEVICE))
    assert torch.equal(found.cpu(), on_gpu(x, bins, -0.1, 0.7))


def test_a_bin_of_a_result_of_16_bits_is_divided_exactly() -> None:
    program = gpu_program(lambda x: torch.histc(x, 10, 0, 3).bfloat16(), torch.rand(5000))
    text = "".join(render_kernel(k, TritonOptions(fast_math=True)).text for k in program.kernels)
    assert "div_rn" in text


SHAPES = {
    "several dimensions": torch.randn(40, 5, 30),
    "transposed": torch.randn(70, 90).t(),
    "strided": torch.randn(90, 80)[::2, ::3],
    "expanded": torch.randn(90, 1).expand(90, 50),
    "a number": torch.tensor(0.5),
    "few": torch.randn(3),
    "whole blocks": torch.randn(8192),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(cache: DiskCache, name: str) -> None:
    x = SHAPES[name].to(DEVICE).cpu()  # copies to a GPU may lie otherwise
    (found,) = built(cache, lambda x: torch.histc(x, 12, -2, 2), x)(x.to(DEVICE))
    assert torch.equal(found.cpu(), on_gpu(x, 12, -2, 2))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("of", ["many", "one number", "a number"])
def test_a_range_of_the_data(cache: DiskCache, dtype: torch.dtype, of: str) -> None:
    x = torch.randn(5000).mul(20).abs().to(dtype)
    x = {"many": x, "one number": torch.full((300,), 7).to(dtype), "a number": x[0]}[of]
    low, high = float(x.min()), float(x.max())
    low, high = (low - 1, high + 1) if low == high else (low, high)
    executable = built(cache, lambda x: torch.histc(x, 10), x)
    (found,) = executable(x.to(DEVICE))
    assert found.dtype is dtype
    assert torch.equal(found.cpu(), on_gpu(x, 10, low, high))


def test_ends_that_are_the_same_in_the_elements_type_are_those_of_the_data(cache) -> None:
    ones = torch.tensor([1, 2, 3], dtype=torch.int32)
    (found,) = built(cache, lambda x: torch.histc(x, 2, 0.2, 0.8), ones)(ones.to(DEVICE))
    assert found.tolist() == [1, 2]


def test_nothing_to_count(cache: DiskCache) -> None:
    x = torch.randn(0, 4)
    (found,) = built(cache, lambda x: torch.histc(x, 5, 0, 1), x)(x.to(DEVICE))
    assert found.tolist() == [0] * 5


def test_what_is_counted_is_computed_where_it_is_counted(cache: DiskCache) -> None:
    """Along rows and columns at once: the block of a tile is one row of points."""
    x, y = torch.randn(80, 64), torch.randn(64, 80)
    executable = built(cache, lambda x, y: torch.histc(x + y.t(), 20, -3, 3), x, y)
    assert executable.metadata["launches"] == 3
    (found,) = executable(x.to(DEVICE), y.to(DEVICE))
    assert torch.equal(found.cpu(), on_gpu(x + y.t(), 20, -3, 3))
    assert "tl.reshape" in executable.source


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("rows", [1, 8, 1000, 1025])
def test_ones_that_are_added_are_counted(cache: DiskCache, dtype: torch.dtype, rows: int) -> None:
    where = torch.randint(0, rows, (5000,))
    ones = torch.ones(5000, dtype=dtype)
    executable = built(
        cache,
        lambda i: torch.zeros(rows, dtype=dtype, device=i.device).index_add(
            0, i, torch.ones(5000, dtype=dtype, device=i.device)
        ),
        where,
    )
    (found,) = executable(where.to(DEVICE))
    assert torch.equal(found.cpu(), torch.zeros(rows, dtype=dtype).index_add(0, where, ones))
    assert ("tl.histogram" in executable.source) == (rows <= 1024)


def test_an_index_out_of_bounds_is_reported(cache: DiskCache) -> None:
    def counted(i):
        return torch.zeros(9, dtype=torch.int64, device=i.device).scatter_add(
            0, i, torch.ones_like(i)
        )

    executable = built(cache, counted, torch.zeros(5000, dtype=torch.int64))
    where = torch.randint(0, 9, (5000,))
    where[77] = 9
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        executable(where.to(DEVICE))
    where[77] = 8
    (found,) = executable(where.to(DEVICE))
    assert torch.equal(found.cpu(), torch.bincount(where, minlength=9))


REFUSED = {
    "a range that is not finite": lambda x: torch.histc(x, 5, 0, float("inf")),
    "a range too wide for products": lambda x: torch.histc(x, 1000, -1e37, 1e37),
    "a range of the data that need not be finite": lambda x: torch.histc(x, 5),
    "ends that are the same in the elements' type": lambda x: torch.histc(x, 5, 1, 1 + 1e-12),
    "many bins": lambda x: torch.histc(x, 257, 0, 1),
    "half": lambda x: torch.histc(x.half(), 5, 0, 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_to_aten(name: str) -> None:
    program = gpu_program(REFUSED[name], torch.randn(50))
    assert "aten::histc" in str([*program.steps])


def test_floats_are_refused_by_aten_where_deterministic_algorithms_are_asked_for() -> None:
    def steps(x: torch.Tensor) -> str:
        chosen = LoweringOptions(deterministic=True)
        program = gpu_program(lambda x: torch.histc(x, 5, 0, 9), x, lowering=chosen)
        return str([*program.steps])

    assert "aten::histc" in steps(torch.randn(50))
    assert "aten::histc" not in steps(torch.arange(50))
