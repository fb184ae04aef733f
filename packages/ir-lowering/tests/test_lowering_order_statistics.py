"""The k-th element, medians, and the largest of long rows on GPUs, as loop IR that sorts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lowering_sort_kernels import DTYPES, gpu_graph, numbers, same_bits

from plait_ir_lowering import Sort, external_ops, interpret, sorts_that_are_calls

ORDERED = [dtype for dtype in DTYPES if dtype is not torch.bool]


def is_eagers(function, x: torch.Tensor, axis: int) -> None:
    """What a function gives is eager's; of equal elements any position is right."""
    graph = gpu_graph(function, x)
    assert not external_ops(graph)
    values, positions = interpret(graph, [x])
    expected = function(x)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)
    if positions.dim() < x.dim():
        values, positions = values.unsqueeze(axis), positions.unsqueeze(axis)
    found = x.gather(axis, positions)
    torch.testing.assert_close(found, values, rtol=0, atol=0, equal_nan=True)


SHAPES = [((1,), 0), ((2,), 0), ((4, 7), 1), ((8, 3), 0), ((2, 9, 2), 1), ((0, 4), 1)]


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_medians_and_all_kth_values(dtype, keepdim):
    for shape, axis in SHAPES:
        x = numbers(shape, dtype)
        is_eagers(lambda x, a=axis: x.median(a, keepdim), x, axis)
        is_eagers(lambda x, a=axis: x.nanmedian(a, keepdim), x, axis)
        for k in range(1, shape[axis] + 1):
            is_eagers(lambda x, a=axis, k=k: x.kthvalue(k, a, keepdim), x, axis)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda n: st.lists(
            st.lists(
                st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0, 2.5]),
                min_size=n,
                max_size=n,
            ),
            min_size=1,
            max_size=3,
        )
    ),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_medians_beside_any_numbers_of_nan(rows, dtype):
    x = torch.tensor(rows, dtype=dtype)
    is_eagers(lambda x: x.median(1), x, 1)
    is_eagers(lambda x: x.nanmedian(1), x, 1)
    for function in (torch.median, torch.nanmedian):
        (found,) = interpret(gpu_graph(lambda x, f=function: (f(x),), x), [x])
        torch.testing.assert_close(found, function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ORDERED, ids=str)
@pytest.mark.parametrize("shape", [(1,), (2,), (3, 5), (4, 1, 6), ()])
def test_medians_of_all_elements(dtype, shape):
    x = numbers(shape, dtype)
    for function in (torch.median, torch.nanmedian):
        graph = gpu_graph(lambda x, f=function: (f(x),), x)
        assert not external_ops(graph)
        (found,) = interpret(graph, [x])
        torch.testing.assert_close(found, function(x), rtol=0, atol=0, equal_nan=True)


def test_what_raises_where_algorithms_are_to_be_deterministic_is_called():
    x = torch.randn(2, 5)
    for program in (lambda x: x.kthvalue(2), lambda x: x.median(1), lambda x: x.nanmedian(1)):
        assert external_ops(gpu_graph(program, x, deterministic=True))
    assert not external_ops(gpu_graph(lambda x: (x.median(),), x, deterministic=True))


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 17).flatmap(
        lambda n: st.lists(
            st.lists(
                st.sampled_from([-(2**63), 2**63 - 1, 2**63 - 2, -1, 0, 2**32, 2**32 + 1]),
                min_size=n,
                max_size=n,
            ),
            min_size=1,
            max_size=3,
        )
    ),
    descending=st.booleans(),
)
def test_extremes_of_64_bits_are_sorted_stably(rows, descending):
    x = torch.tensor(rows)
    graph = gpu_graph(lambda x: x.sort(1, descending), x)
    assert not external_ops(graph)
    values, positions = interpret(graph, [x])
    expected = x.sort(dim=1, descending=descending, stable=True)
    assert torch.equal(values, expected.values)
    assert torch.equal(positions, expected.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize(
    ("length", "k", "axis"),
    [(4097, 1, 1), (5000, 3, 0), (8192, 8, 1), (8193, 9, 1), (20000, 50, 1), (152064, 64, 1)],
)
def test_the_largest_of_long_rows_are_found_by_blocks(dtype, length, k, axis):
    x = numbers((1, length) if axis else (length, 1), dtype)
    for largest in (True, False):
        graph = gpu_graph(lambda x, m=largest: x.topk(k, axis, m), x)
        assert not external_ops(graph)
        values, positions = interpret(graph, [x])
        expected = x.sort(dim=axis, descending=largest, stable=True)
        same_bits(values, expected.values.narrow(axis, 0, k))
        assert torch.equal(positions, expected.indices.narrow(axis, 0, k))


def test_a_vocabulary_is_gone_through_once():
    graph = gpu_graph(lambda x: x.topk(50), torch.zeros(4, 152064))
    sorts = [d for d in graph.definitions if isinstance(d.body, Sort)]
    assert [str(d.buffers[0].layout.size[-2]) for d in sorts[:1]] == ["75"]
    assert len(sorts) == 3  # the keys of blocks; values and positions of one sort of these


REASONS = {
    "sort": (lambda x: x.sort(1), torch.zeros(2, 600), "600 elements of f32 are more than the 512"),
    "top-k": (lambda x: x.topk(70), torch.zeros(2, 600), "70 of 600 elements of f32"),
    "few of long rows": (lambda x: x.topk(9), torch.zeros(99, 99999), "blocks"),
    "median": (lambda x: x.median(0), torch.zeros(600, 2).double(), "301 of 600|600 elements"),
    "median of all": (lambda x: (x.median(),), torch.zeros(60, 20), "1200 elements of f32"),
    "mode": (lambda x: x.mode(1), torch.zeros(2, 6), "threads"),
}


@pytest.mark.parametrize("name", REASONS)
def test_calls_say_why_they_are_no_kernels(name):
    program, x, reason = REASONS[name]
    ((_, found),) = sorts_that_are_calls(gpu_graph(program, x))
    assert any(each in found for each in reason.split("|"))


def test_calls_that_are_asked_for_say_so():
    graph = gpu_graph(lambda x: x.topk(2), torch.zeros(2, 6), sort_kernels=False)
    ((name, found),) = sorts_that_are_calls(graph)
    assert (name, found) == ("topk", "it is left to torch")
    assert not list(sorts_that_are_calls(gpu_graph(lambda x: x.topk(2), torch.zeros(2, 6))))
