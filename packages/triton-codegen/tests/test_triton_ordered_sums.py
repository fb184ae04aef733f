"""Sums at computed places in a fixed order, as a GPU runs them where deterministic algorithms are
asked for: against eager in float64, by all pairs and by sorted points."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from triton_checks import DEVICE, agrees_with_eager, gpu_program

from plait_ir_lowering import LoweringOptions
from plait_ir_lowering.rules import ordered_sums
from plait_triton_codegen import build
from plait_utils import DiskCache

DETERMINISTIC = LoweringOptions(deterministic=True)
FLOATS = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 2e-2, torch.float16: 2e-3}
EXACT = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


@pytest.fixture(params=["pairs", "runs", "short runs"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How sums are made: of all pairs; along one chunk of sorted points; or along several levels of
    chunks."""
    if request.param != "pairs":
        monkeypatch.setattr(ordered_sums, "MOST_PAIRS", 0)
    if request.param == "short runs":
        monkeypatch.setattr(ordered_sums, "_CHUNKS", ((3, 4), (1, 8)))
    return request.param


def _random(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(size).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 9, size).to(dtype)


def _agrees(cache: DiskCache, function, *inputs: torch.Tensor, tolerance: float = 1e-5):
    return agrees_with_eager(cache, function, *inputs, tolerance=tolerance, lowering=DETERMINISTIC)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("axis", "index"), [(0, torch.int64), (1, torch.int32)], ids=str)
def test_index_add(cache: DiskCache, form: str, dtype, axis: int, index) -> None:
    x, source = _random(9, 7, dtype=dtype), _random(*((70, 7), (9, 70))[axis], dtype=dtype)
    where = torch.randint(0, x.shape[axis], (70,), dtype=index)
    executable = _agrees(
        cache,
        lambda x, i, s: x.index_add(axis, i, s, alpha=2),
        *(x, where, source),
        tolerance=5 * FLOATS[dtype],
    )
    assert ("aten.sort" in executable.source) == (form != "pairs")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scatter_add(cache: DiskCache, form: str, dtype: torch.dtype) -> None:
    x, source = _random(11, 7, dtype=dtype), _random(40, 7, dtype=dtype)
    where = torch.randint(0, 11, (40, 5))
    _agrees(
        cache, lambda x, i, s: x.scatter_add(0, i, s), x, where, source, tolerance=FLOATS[dtype]
    )


def test_an_index_that_all_columns_share(cache: DiskCache, form: str) -> None:
    x, source, where = torch.randn(6, 11), torch.randn(50, 11), torch.randint(0, 6, (50,))
    _agrees(
        cache, lambda x, i, s: x.scatter_add(0, i.unsqueeze(1).expand(50, 11), s), x, where, source
    )


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_scatter_reduce(
    cache: DiskCache, form: str, reduce: str, include_self: bool, dtype
) -> None:
    x, source = _random(3, 10, dtype=dtype), _random(3, 32, dtype=dtype)
    where = torch.randint(0, 10, (3, 32))
    _agrees(
        cache,
        lambda x, i, s: x.scatter_reduce(1, i, s, reduce, include_self=include_self),
        *(x, where, source),
        tolerance=FLOATS.get(dtype, 0),
    )


@pytest.mark.parametrize("shape", [(5, 6, 7), (5, 1, 7)], ids=str)
def test_index_put_with_several_indices(cache: DiskCache, form: str, shape) -> None:
    def accumulated(x, i, j, s):
        return torch.ops.aten.index_put(x, [i, None, j], s, True)

    i, j = torch.randint(-5, 5, (30,)), torch.randint(-7, 7, (30,))
    _agrees(cache, accumulated, torch.randn(shape), i, j, torch.randn(30, shape[1]))


def test_one_place(cache: DiskCache, form: str) -> None:
    """Of a tensor without dimensions, and named by indices without any."""
    zeros = torch.zeros(9, dtype=torch.int64)
    _agrees(cache, lambda x, i, s: x.scatter_add(0, i, s), torch.randn(()), zeros, torch.randn(9))
    put = torch.ops.aten.index_put
    _agrees(
        cache,
        lambda x, i, s: put(x, [i], s, True),
        *(torch.randn(4, 3), torch.tensor(2), torch.randn(3)),
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("padding", "by_frequency"), [(-1, False), (3, True)])
def test_embedding_backward(cache: DiskCache, form: str, dtype, padding, by_frequency) -> None:
    def backward(grad, index):
        rows = (20, padding, by_frequency)
        return torch.ops.aten.embedding_dense_backward(grad * 2, index, *rows)

    grad, index = _random(4, 30, 5, dtype=dtype), torch.randint(0, 20, (4, 30))
    _agrees(cache, backward, grad, index, tolerance=5 * FLOATS[dtype])


def test_indices_of_an_embeddings_backward_that_are_out_of_bounds(cache, form: str) -> None:
    program = gpu_program(
        lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 20, -1, False),
        *(torch.randn(6, 4), torch.randint(0, 20, (6,))),
        lowering=DETERMINISTIC,
    )
    index = torch.tensor([1, -1, 20, 1, 2**40, 0])
    (found,) = build(program, cache=cache)(torch.ones(6, 4, device=DEVICE), index.to(DEVICE))
    assert found[:, 0].tolist() == [1, 2, *[0] * 18]


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_all_points_in_one_row_and_each_in_its_own(cache: DiskCache, form: str, rows: int) -> None:
    source, own = torch.randn(100, 3), torch.randperm(100)
    for where in (torch.full((100,), rows - 1), torch.arange(100) % rows, own % rows):
        _agrees(cache, lambda x, i, s: x.index_add(0, i, s), torch.randn(rows, 3), where, source)


def test_a_row_keeps_what_nothing_is_added_to(cache: DiskCache, form: str) -> None:
    """To the bit, and what is not a number stays in its own row."""
    x = torch.tensor([-0.0, 0.0, float("nan"), float("inf"), 1.0])
    source = torch.tensor([float("nan"), 1.0, -float("inf")])
    program = gpu_program(
        lambda x, i, s: x.index_add(0, i, s),
        *(x, torch.tensor([4, 1, 3]), source),
        lowering=DETERMINISTIC,
    )
    where = torch.tensor([4, 1, 3], device=DEVICE)
    (found,) = build(program, cache=cache)(x.to(DEVICE), where, source.to(DEVICE))
    nan = float("nan")
    expected = torch.tensor([-0.0, 1.0, nan, nan, nan])
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    assert found[0].signbit()


def test_no_points(cache: DiskCache, form: str) -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    x, rows = torch.randn(10, 3), torch.zeros(0, 3)
    _agrees(cache, lambda x, i, s: x.index_add(0, i, s), x, nothing, rows)
    _agrees(cache, lambda x, i, s: x.index_add(1, i, s), x[:0], nothing, x[:0, :0])


def test_an_index_out_of_bounds_is_reported(cache: DiskCache, form: str) -> None:
    program = gpu_program(
        lambda x, i, s: x.index_add(0, i, s),
        *(torch.randn(10, 4), torch.tensor([3, 11]), torch.randn(2, 4)),
        lowering=DETERMINISTIC,
    )
    executable = build(program, cache=cache)
    given = torch.zeros(10, 4, device=DEVICE), torch.ones(2, 4, device=DEVICE)
    with pytest.raises(IndexError, match="index 11 is out of bounds"):
        executable(given[0], torch.tensor([3, 11], device=DEVICE), given[1])
    (found,) = executable(given[0], torch.tensor([3, 9], device=DEVICE), given[1])
    assert found.sum() == 8


def test_sums_are_the_same_each_time(cache: DiskCache, form: str) -> None:
    x, source, where = torch.randn(9, 3), 1e4 * torch.randn(200, 3), torch.randint(0, 9, (200,))
    program = gpu_program(
        lambda x, i, s: x.index_add(0, i, s), x, where, source, lowering=DETERMINISTIC
    )
    executable = build(program, cache=cache)
    given = [each.to(DEVICE) for each in (x, where, source)]
    (first,) = executable(*given)
    assert all(torch.equal(executable(*given)[0], first) for _ in range(3))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_integers_are_added_in_any_order(cache: DiskCache, dtype: torch.dtype) -> None:
    x, source = _random(9, 7, dtype=dtype), _random(40, 7, dtype=dtype)
    executable = _agrees(
        cache,
        lambda x, i, s: x.scatter_add(0, i, s),
        *(x, torch.randint(0, 9, (40, 7)), source),
        tolerance=0,
    )
    assert "aten." not in executable.source
