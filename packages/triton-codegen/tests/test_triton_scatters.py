"""Writes at computed places: programs as they are lowered for a GPU, against eager in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton_kernels as kernels
from triton_checks import DEVICE, agrees_with_eager, gpu_program

from plait_triton_codegen import TritonOptions, UnsupportedKernelError, build, render_kernel
from plait_utils import DiskCache

NARROW = {torch.bfloat16: 2e-2, torch.float16: 2e-3}
NUMBERS = (torch.float32, torch.float64, *NARROW, torch.int64, torch.int32, torch.int16)
BYTES = (torch.int8, torch.uint8)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def _random(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    if dtype is torch.bool:
        return torch.rand(size) < 0.3
    return torch.randint(0 if dtype is torch.uint8 else -5, 9, size).to(dtype)


def _tolerance(dtype: torch.dtype) -> float:
    return NARROW.get(dtype, 1e-5)


@pytest.mark.parametrize("dtype", [*NUMBERS, *BYTES], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_index_add(cache: DiskCache, dtype: torch.dtype, axis: int) -> None:
    x, source = _random(9, 7, dtype=dtype), _random(*((40, 7), (9, 40))[axis], dtype=dtype)
    where = torch.randint(0, x.shape[axis], (40,))
    agrees_with_eager(
        cache,
        lambda x, i, s: x.index_add(axis, i, s),
        *(x, where, source),
        tolerance=_tolerance(dtype),
    )


@pytest.mark.parametrize("dtype", [*NUMBERS, *BYTES, torch.bool], ids=str)
def test_scatter_and_scatter_add(cache: DiskCache, dtype: torch.dtype) -> None:
    x, source = _random(64, 7, dtype=dtype), _random(32, 7, dtype=dtype)
    once = torch.randperm(64)[:32, None].repeat(1, 7)
    tolerance = _tolerance(dtype)
    agrees_with_eager(cache, lambda x, i, s: x.scatter(0, i, s), x, once, source)
    often = torch.randint(0, 9, (32, 7))
    agrees_with_eager(
        cache, lambda x, i, s: x.scatter_add(0, i, s), x, often, source, tolerance=tolerance
    )


@pytest.mark.parametrize("dtype", [*NUMBERS, *BYTES], ids=str)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_scatter_reduce(
    cache: DiskCache, dtype: torch.dtype, include_self: bool, reduce: str
) -> None:
    agrees_with_eager(
        cache,
        lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=include_self),
        *(_random(10, 7, dtype=dtype), torch.randint(0, 10, (32, 7)), _random(32, 7, dtype=dtype)),
        tolerance=_tolerance(dtype),
    )


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_extremes_hand_on_nan(cache: DiskCache, reduce: str) -> None:
    x, source = torch.randn(10, 7), torch.randn(32, 7)
    x[3, 2], x[1] = float("nan"), -0.0
    source[5], source[6], source[7] = float("nan"), float("inf"), -float("inf")
    where = torch.randint(0, 10, (32, 7))
    agrees_with_eager(cache, lambda x, i, s: x.scatter_reduce(0, i, s, reduce), x, where, source)


def test_index_put_with_several_indices(cache: DiskCache) -> None:
    def accumulated(x, i, j, s):
        return torch.ops.aten.index_put(x, [i, None, j], s, True)

    i, j = torch.randint(-5, 5, (8,)), torch.randint(-7, 7, (8,))
    agrees_with_eager(cache, accumulated, torch.randn(5, 6, 7), i, j, torch.randn(8, 6))


def test_assignments(cache: DiskCache) -> None:
    x, where, rows = torch.randn(50, 6), torch.randperm(50)[:8], torch.randn(8, 6)
    agrees_with_eager(cache, lambda x, i, s: x.index_copy(0, i, s.relu()), x, where, rows)
    agrees_with_eager(cache, lambda x, i: x.index_fill(0, i, 2.5), x, where)
    agrees_with_eager(cache, lambda x, i, s: x.put(i, s), x, where, rows[:, 0].contiguous())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("padding", "by_frequency"), [(-1, False), (3, False), (-1, True)])
def test_embedding_backward(
    cache: DiskCache, dtype: torch.dtype, padding: int, by_frequency: bool
) -> None:
    def backward(grad, index):
        rows = (20, padding, by_frequency)
        return torch.ops.aten.embedding_dense_backward(grad * 2, index, *rows)

    grad, index = _random(4, 60, 16, dtype=dtype), torch.randint(0, 20, (4, 60))
    executable = agrees_with_eager(cache, backward, grad, index, tolerance=5 * _tolerance(dtype))
    assert executable.metadata["launches"] <= 5  # its operand is computed where it is added


def test_indices_of_an_embeddings_backward_are_not_waited_for(cache: DiskCache) -> None:
    program = gpu_program(
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 20, -1, False),
        *(torch.randn(6, 4), torch.randint(0, 20, (6,))),
    )
    executable = build(program, cache=cache)
    assert all(not kernel.checks for kernel in executable.kernels)
    index = torch.tensor([1, -1, 20, 1, 2**40, 0])
    (found,) = executable(torch.ones(6, 4, device=DEVICE), index.to(DEVICE))
    assert found[:, 0].tolist() == [1, 2, *[0] * 18]


def test_rows_lie_next_to_each_other_where_they_are_added() -> None:
    """Neighbours among the points go to neighbours in memory, whatever the operand's strides."""
    program = gpu_program(
        lambda x, i, s: x.index_add(0, i, s.t()),
        *(torch.randn(10, 64), torch.randint(0, 10, (32,)), torch.randn(64, 32)),
    )
    (kernel,) = [kernel for kernel in program.kernels if "scatter" in kernel.name]
    assert "for r0: 32, i0: 64" in render_kernel(kernel).text


def test_an_index_out_of_bounds_is_reported(cache: DiskCache) -> None:
    program = gpu_program(
        lambda x, i, s: x.index_add(0, i, s),
        *(torch.randn(10, 4), torch.tensor([3, 11]), torch.randn(2, 4)),
    )
    executable = build(program, cache=cache)
    given = torch.zeros(10, 4, device=DEVICE), torch.ones(2, 4, device=DEVICE)
    with pytest.raises(IndexError, match="index 11 is out of bounds"):
        executable(given[0], torch.tensor([3, 11], device=DEVICE), given[1])
    (found,) = executable(given[0], torch.tensor([3, 9], device=DEVICE), given[1])
    assert found.sum() == 8


def test_no_rows(cache: DiskCache) -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    x, rows = torch.randn(10, 3), torch.zeros(0, 3)
    agrees_with_eager(cache, lambda x, i, s: x.index_add(0, i, s), x, nothing, rows)


@pytest.mark.parametrize(("kind", "dtype"), [("mul", "f32"), ("add", "bf16"), ("max", "f32")])
def test_what_is_not_atomic_is_refused(kind: str, dtype: str) -> None:
    with pytest.raises(UnsupportedKernelError, match=f"no atomic {kind} of {dtype}"):
        render_kernel(kernels.scattered(kind, dtype), TritonOptions())
