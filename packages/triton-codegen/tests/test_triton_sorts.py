"""Sorts and top-k of rows in registers: NaN, zeros, equal elements, and what is fused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton_kernels as kernels
from triton_checks import DEVICE, gpu_program, launches, reference, run

from plait_scheduler import parse_kernel
from plait_triton_codegen import (
    Tile,
    TritonExecutable,
    UnsupportedKernelError,
    build,
    render_kernel,
)
from plait_utils import DiskCache

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Many of them equal; of floats zeros of both signs, infinities and NaN, too."""
    x = torch.randint(-3, 4, shape).to(dtype)
    if dtype is torch.bool:
        return x
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return x.masked_fill(x == 3, limits.max).masked_fill(x == 2, limits.min)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-8, -1e-8, 0.0, 0.0])
    chosen = special[torch.randint(0, 8, shape)].to(dtype)
    return torch.where(torch.rand(shape) < 0.5, x, chosen)


def _placed(x: torch.Tensor) -> torch.Tensor:
    """A tensor on the device with its strides, gaps and repetitions included."""
    if not x.numel():
        return x.to(DEVICE)
    span = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
    return x.as_strided((span,), (1,)).to(DEVICE).as_strided(x.shape, x.stride())


def agrees(
    cache: DiskCache, function, x: torch.Tensor, expected, launches: int = 1
) -> TritonExecutable:
    """Run a function's program for a GPU by Triton's kernels alone; results are the expected ones
    to the bit, signs of zeros included."""
    executable = build(gpu_program(function, x), cache=cache)
    assert executable.metadata["torch kernels"] == 0
    assert executable.metadata["launches"] == launches
    for ours, theirs in zip(executable(_placed(x)), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, equal_nan=True)
        if theirs.dtype.is_floating_point:
            known = ~theirs.isnan()
            assert torch.equal(ours.cpu().signbit()[known], theirs.signbit()[known])
    return executable


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_rows_of_all_types_are_sorted_stably(cache, dtype, descending):
    x = numbers((5, 17), dtype)
    expected = x.sort(dim=1, descending=descending, stable=True)
    agrees(cache, lambda x: x.sort(dim=1, descending=descending), x, expected)


LENGTHS = [
    (torch.bfloat16, (2, 3, 64, 100, 1000, 1024)),
    (torch.float32, (2, 3, 100, 500, 512)),
    (torch.float64, (2, 3, 31, 32, 33, 100, 256)),
    (torch.int64, (2, 3, 255)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("dtype", "length"),
    [(dtype, length) for dtype, lengths in LENGTHS for length in lengths],
    ids=str,
)
def test_rows_of_many_lengths(cache, length, dtype):
    x = numbers((3, length), dtype)
    agrees(cache, lambda x: x.sort(-1), x, x.sort(dim=-1, stable=True))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (4, 1)])
def test_rows_of_one_element(cache, shape):
    x = numbers(shape, torch.float32)
    agrees(cache, lambda x: x.sort(-1), x, x.sort(dim=-1, stable=True))


ARRANGED = {
    "down columns": (lambda x: x.sort(0), (17, 40), lambda x: x),
    "in the middle": (lambda x: x.sort(1), (3, 20, 6), lambda x: x),
    "of a transpose": (lambda x: x.sort(1), (40, 9), lambda x: x.t()),
    "of every other element": (lambda x: x.sort(1), (4, 60), lambda x: x[:, ::2]),
    "of one row again": (lambda x: x.sort(1), (1, 20), lambda x: x.expand(4, 20)),
    "of all dimensions": (lambda x: x.flatten().sort(0), (4, 3, 5), lambda x: x),
    "of many short rows": (lambda x: x.sort(1), (700, 5), lambda x: x),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ARRANGED)
def test_rows_that_lie_otherwise(cache, name):
    function, size, view = ARRANGED[name]
    x = view(numbers(size, torch.float32))
    torch_sort = torch.Tensor.sort
    stable = pytest.MonkeyPatch()
    with stable.context() as patch:
        patch.setattr(torch.Tensor, "sort", lambda x, dim: torch_sort(x, dim=dim, stable=True))
        expected = function(x)
    agrees(cache, function, x, expected)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int32, torch.float64, torch.int64], ids=str
)
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(
    ("length", "k"),
    [(1, 1), (2, 1), (3, 2), (17, 1), (17, 2), (17, 5), (17, 9), (17, 17), (1000, 3), (512, 64)],
)
def test_the_largest_and_the_least(cache, dtype, largest, length, k):
    x = numbers((3, length), dtype)
    values, positions = x.sort(dim=1, descending=largest, stable=True)
    agrees(cache, lambda x: x.topk(k, 1, largest), x, (values[:, :k], positions[:, :k]))
    eager = x.topk(k, 1, largest).values
    torch.testing.assert_close(values[:, :k], eager, rtol=0, atol=0, equal_nan=True)


def test_the_largest_down_columns(cache):
    x = numbers((33, 12), torch.float32)
    values, positions = x.sort(dim=0, descending=True, stable=True)
    agrees(cache, lambda x: x.topk(4, 0), x, (values[:4], positions[:4]))


def test_nothing_is_done_without_rows(cache):
    x = torch.empty(0, 8)
    agrees(cache, lambda x: x.topk(3), x, x.topk(3), launches=0)


def routed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the likeliest experts, which add up to 1."""
    weights, experts = x.softmax(-1).topk(4)
    return weights / weights.sum(-1, keepdim=True), experts


def routed_by_scores(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores, experts = x.topk(3)
    return scores.softmax(-1), experts


def routed_to_one(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights, experts = x.sigmoid().topk(1)
    return weights * 2, experts


@pytest.mark.parametrize(
    ("function", "count"), [(routed, 1), (routed_by_scores, 1), (routed_to_one, 2)]
)
def test_what_is_around_top_k_is_in_its_kernel(cache, function, count):
    x = torch.randn(9, 40)
    program = gpu_program(function, x)
    assert launches(program) == count
    executable = build(program, cache=cache)
    assert executable.metadata["torch kernels"] == 0
    (weights, experts), expected = executable(x.to(DEVICE)), function(x)
    torch.testing.assert_close(weights.cpu(), expected[0])
    assert torch.equal(experts.cpu(), expected[1])


def nucleus(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the likeliest, those that make up nine tenths."""
    likely, places = x.softmax(-1).sort(-1, descending=True)
    return likely.masked_fill(likely.cumsum(-1) - likely > 0.9, 0.0), places


def test_what_follows_a_sort_is_in_its_kernel(cache):
    x = torch.randn(9, 100)
    executable = build(gpu_program(nucleus, x), cache=cache)
    assert executable.metadata["launches"] == 1
    assert executable.metadata["torch kernels"] == 0
    ours, expected = executable(x.to(DEVICE)), nucleus(x)
    torch.testing.assert_close(ours[0].cpu(), expected[0])
    assert torch.equal(ours[1].cpu(), expected[1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", [Tile(1, 16, 1, True), Tile(4, 16, 2, True), Tile(2, 32, 1, True)])
@pytest.mark.parametrize("first", [None, 1, 3, 4, 5, 8, 9])
def test_blocks_of_any_size(tile, first):
    kernel = kernels.sorted_keys(7, 13, first=first)
    x = torch.randint(-(2**62), 2**62, (7, 13))
    for ours, theirs in zip(run(kernel, x, tile=tile), reference(kernel, x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", [Tile(1, 16, 1, True), Tile(4, 16, 2, True), Tile(2, 32, 1, True)])
@pytest.mark.parametrize("first", [None, 1, 2, 3, 4, 5, 8, 9])
def test_blocks_of_pairs_of_any_size(tile, first):
    kernel = kernels.sorted_pairs(7, 13, first=first)
    x = torch.randint(-3, 3, (7, 13)).masked_fill(torch.rand(7, 13) < 0.2, 2**63 - 1)
    found, known = run(kernel, x, tile=tile), reference(kernel, x)
    expected = x.sort(dim=1, stable=True)
    for ours, theirs, eagers in zip(found, known, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(ours, eagers[:, :first])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize(("length", "k"), [(8000, 1), (8000, 3), (6000, 9)])
def test_the_largest_of_long_rows_are_found_by_blocks(cache, dtype, length, k):
    x = numbers((1, length), dtype)
    values, positions = (x * 2).sort(dim=1, descending=True, stable=True)
    agrees(cache, lambda x: (x * 2).topk(k), x, (values[:, :k], positions[:, :k]), launches=2)


STATISTICS = {
    "median": lambda x: x.median(1),
    "median, kept": lambda x: x.median(1, keepdim=True),
    "nanmedian": lambda x: x.nanmedian(1),
    "smallest": lambda x: x.kthvalue(1, 1),
    "second": lambda x: x.kthvalue(2, 1),
    "last but one": lambda x: x.kthvalue(x.shape[1] - 1, 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.float64, torch.bfloat16], ids=str
)
@pytest.mark.parametrize("length", [2, 3, 33])
def test_order_statistics_of_rows_are_one_kernel(cache, name, dtype, length):
    x, function = numbers((5, length), dtype), STATISTICS[name]
    executable = build(gpu_program(function, x), cache=cache)
    assert (executable.metadata["torch kernels"], executable.metadata["launches"]) == (0, 1)
    values, positions = (each.cpu() for each in executable(x.to(DEVICE)))
    torch.testing.assert_close(values, function(x).values, rtol=0, atol=0, equal_nan=True)
    values, positions = values.reshape(5, 1), positions.reshape(5, 1)
    torch.testing.assert_close(x.gather(1, positions), values, rtol=0, atol=0, equal_nan=True)


def centered(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Deviations from the median, which follow in a kernel of their own, and their median."""
    middle = x.mul(2).median(1, keepdim=True).values
    return (x * 2 - middle, (x.exp().median(1).values + 1).sqrt())


def test_what_is_around_a_median(cache):
    x = torch.randn(6, 40)
    executable = build(gpu_program(centered, x), cache=cache)
    assert executable.metadata["torch kernels"] == 0
    for ours, theirs in zip(executable(x.to(DEVICE)), centered(x), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(1,), (3, 7), (4, 2, 8)])
@pytest.mark.parametrize("function", [torch.median, torch.nanmedian])
def test_medians_of_all_elements_are_one_kernel(cache, function, shape):
    x = numbers(shape, torch.float32)
    agrees(cache, lambda x: (function(x) + 1,), x, (function(x) + 1,))


@pytest.mark.parametrize("words", ["", "first 3 "])
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_as_many_rows_as_a_call_gives(words, rows):
    kernel = parse_kernel(f"""\
kernel k(p0: read i32[n, 9], p1: write i32[n, {3 if words else 9}]) sizes(n)
  for i0: n inner r0: 9
    sort t0 = {words}p0[i0, r0]
    inner {words}store p1[i0, r0] = %t0
""")
    x = torch.randint(-50, 50, (rows, 9), dtype=torch.int32)
    found, known = run(kernel, x, sizes=[rows]), reference(kernel, x, sizes=[rows])
    assert torch.equal(found[0], known[0])
    assert torch.equal(found[0], x.sort(1).values[:, : found[0].shape[1]])


def test_short_rows_share_a_program_and_long_ones_have_several_warps():
    short = render_kernel(kernels.sorted_keys(65536, 64)).tile
    assert (short.xblock, short.rblock, short.num_warps) == (16, 64, 2)
    few = render_kernel(kernels.sorted_keys(64, 64)).tile
    assert (few.xblock, few.num_warps) == (1, 1)
    long = render_kernel(kernels.sorted_keys(65536, 4000)).tile
    assert (long.xblock, long.rblock, long.num_warps) == (1, 4096, 8)
    columns = render_kernel(kernels.sorted_keys(65536, 128, down=True)).tile
    assert columns.xblock >= 16


def test_few_of_a_row_are_found_without_sorting_it():
    assert ", 8)" in render_kernel(kernels.sorted_keys(8, 64, first=6)).text
    assert "device.sorted_rows" in render_kernel(kernels.sorted_keys(8, 64, first=33)).text


def test_rows_that_do_not_fit_in_registers_are_refused():
    with pytest.raises(UnsupportedKernelError, match="too long"):
        render_kernel(kernels.sorted_keys(8, 5000))
    with pytest.raises(UnsupportedKernelError, match="too long"):
        render_kernel(kernels.sorted_keys(8, 64), tile=Tile(1, 16, 1, False))
