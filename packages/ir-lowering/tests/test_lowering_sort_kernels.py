"""Sorts and top-k of short rows on GPUs: keys, and loop IR that sorts them."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import (
    Graph,
    LoopIRError,
    LoweringOptions,
    Sort,
    external_ops,
    interpret,
    lower,
    parse_graph,
    print_graph,
    verify,
)

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


def gpu_graph(function, x: torch.Tensor, **options) -> Graph:
    """The loop IR of a function of a tensor on a GPU, which need not be there."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")
        traced = make_fx(lambda x: tuple(function(x)))(fake)
    graph = lower(traced, options=LoweringOptions(**options))
    verify(graph)
    assert parse_graph(print_graph(graph)) == graph
    return graph


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert torch.equal(ours.isnan(), theirs.isnan())
    known = ~theirs.isnan()
    assert torch.equal(ours[known], theirs[known])
    if ours.dtype.is_floating_point:
        assert torch.equal(ours.signbit()[known], theirs.signbit()[known])


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Many of them equal; of floats zeros of both signs, infinities and NaN, too."""
    torch.manual_seed(0)
    x = torch.randint(-3, 4, shape).to(dtype)
    if dtype is torch.bool:
        return x
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return x.masked_fill(x == 3, limits.max).masked_fill(x == 2, limits.min)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-8, -1e-8, 0.0, 0.0])
    chosen = special[torch.randint(0, 8, shape)].to(dtype)
    return torch.where(torch.rand(shape) < 0.5, x, chosen)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_rows_are_sorted_as_a_stable_sort_does(dtype, descending):
    for shape, axis in (((1,), 0), ((2,), 0), ((4, 17), 1), ((20, 3), 0), ((2, 33, 2), 1)):
        x = numbers(shape, dtype)
        graph = gpu_graph(lambda x, a=axis: x.sort(dim=a, descending=descending), x)
        assert not external_ops(graph)
        assert all(isinstance(d.body, Sort) for d in graph.definitions)
        values, positions = interpret(graph, [x])
        expected = x.sort(dim=axis, descending=descending, stable=True)
        same_bits(values, expected.values)
        assert torch.equal(positions, expected.indices)


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
@pytest.mark.parametrize("largest", [False, True])
def test_of_equal_elements_the_first_are_chosen(dtype, largest):
    x = numbers((5, 40), dtype)
    expected = x.sort(dim=1, descending=largest, stable=True)
    for k in (1, 2, 7, 40):
        graph = gpu_graph(lambda x, k=k: x.topk(k, 1, largest), x)
        assert not external_ops(graph)
        values, positions = interpret(graph, [x])
        same_bits(values, expected.values[:, :k])
        assert torch.equal(positions, expected.indices[:, :k])
        eager = x.topk(k, 1, largest).values
        torch.testing.assert_close(values, eager, rtol=0, atol=0, equal_nan=True)


def test_every_number_of_16_bits_comes_back():
    for dtype in (torch.bfloat16, torch.float16, torch.int16):
        bits = torch.arange(-(2**15), 2**15).to(torch.int16)
        x = bits[torch.randperm(2**16)].view(dtype).reshape(64, 1024)
        values, positions = interpret(gpu_graph(lambda x: x.sort(1), x), [x])
        same_bits(values, x.sort(dim=1, stable=True).values)
        assert torch.equal(positions, x.sort(dim=1, stable=True).indices)


@pytest.mark.parametrize(
    ("program", "x"),
    [
        (lambda x: x.sort(1), torch.randn(2, 5000)),
        (lambda x: x.topk(2000, 1), torch.randn(2, 4000)),
        (lambda x: x.sort(1), torch.zeros(2, 300, dtype=torch.int64)),
        (lambda x: x.topk(3), torch.zeros(2000, 2100, dtype=torch.float64)),
        (lambda x: x.topk(100), torch.randn(2, 5000)),
        (lambda x: x.topk(0), torch.randn(2, 5)),
        (lambda x: x.sort(1), torch.randn(2, 0)),
        (lambda x: x.kthvalue(2, 1), torch.randn(2, 5000)),
        (lambda x: x.median(1), torch.randn(2, 5000)),
        (lambda x: (x.nanmedian(),), torch.randn(2, 5000)),
        (lambda x: x.median(0), torch.zeros(5, dtype=torch.bool)),
        (lambda x: x.mode(1), torch.randn(2, 5)),
    ],
)
def test_what_stays_a_call(program, x):
    assert external_ops(gpu_graph(program, x))


def test_sorts_without_rows():
    x = torch.randn(0, 7)
    values, positions = interpret(gpu_graph(lambda x: x.topk(3), x), [x])
    assert values.shape == positions.shape == (0, 3)


def test_sorts_are_calls_where_that_is_asked_for():
    x = torch.zeros(2, 20, dtype=torch.int32)
    for program in (lambda x: x.topk(3), lambda x: x.sort()):
        assert external_ops(gpu_graph(program, x, sort_kernels=False))
        assert external_ops(gpu_graph(program, x, exact=True))


SOUND = """graph sound()
  input x: i32[4, 6] on cpu
  define y: i32[4, 3] on cpu
    sort i1 of i32 for i0: 4, i1: 6 give neg(%sorted0) = mul(x[i0, i1], i32(2))
  return y
"""


def test_a_sort_gives_the_least():
    graph = parse_graph(SOUND)
    verify(graph)
    assert print_graph(graph) == SOUND
    x = torch.randint(0, 50, (4, 6), dtype=torch.int32)
    (y,) = interpret(graph, [x])
    assert torch.equal(y, -(x.sort(1).values[:, :3] * 2))


PAIRS = """graph pairs()
  input x: i64[4, 6] on cpu
  define y: i64[4, 3] on cpu
    sort i1 of i64, i32 for i0: 4, i1: 6 give add(%sorted0, to(%sorted1, i64)) = pack(x[i0, i1], \
to(neg(index(i1)), i32))
  return y
"""


def test_the_second_word_counts_where_the_first_are_equal():
    graph = parse_graph(PAIRS)
    verify(graph)
    assert print_graph(graph) == PAIRS
    x = torch.randint(0, 3, (4, 6)) * 100
    (y,) = interpret(graph, [x])
    order = x.flip(1).sort(dim=1, stable=True)
    assert torch.equal(y, (order.values - (5 - order.indices))[:, :3])


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("i32[4, 3]", "i32[4, 7]", "7 of 6 elements are kept"),
        ("i32[4, 3]", "i32[3, 3]", "another shape"),
        ("i32[4, 3]", "f32[4, 3]", "a i32 result for a f32 buffer"),
        ("i32[4, 3]", "i32[3]", "a dimension for each loop"),
        ("neg(%sorted0)", "neg(x[0, 0])", "not part"),
        ("of i32", "of i64", "not part"),
        ("mul(x[i0, i1], i32(2))", "to(x[i0, i1], f32)", "f32, not i32 or i64"),
        ("sort i1", "sort i2", "no loop"),
        ("mul(x[i0, i1], i32(2))", "pack(x[i0, i1], x[i0, i1], i32(0))", "3 words"),
        ("mul(x[i0, i1], i32(2))", "pack(x[i0, i1], to(x[i0, i1], f32))", "f32, not i32 or i64"),
        ("neg(%sorted0)", "%sorted1", "sorted1"),
    ],
)
def test_broken_sorts_are_refused(old, new, reason):
    with pytest.raises(LoopIRError, match=reason):
        verify(parse_graph(SOUND.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("dtype", "length"),
    [
        (torch.float64, 2**30 + 1),
        (torch.float32, 2**31 + 1),
        (torch.int64, 2**31 + 1),
        (torch.int32, 2**32 + 1),
    ],
)
def test_rows_whose_positions_take_more_than_a_word_are_calls(dtype, length):
    with FakeTensorMode():
        x = torch.empty(length, dtype=dtype)
    for program in (lambda x: x.sort(), lambda x: x.topk(5), lambda x: x.kthvalue(3)):
        assert external_ops(gpu_graph(program, x))
