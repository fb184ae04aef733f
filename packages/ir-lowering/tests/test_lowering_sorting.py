"""Stable sorts of short rows: order of NaN and of equal elements as in eager."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import external_ops, interpret, lower

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_of_short_rows(dtype, descending):
    torch.manual_seed(0)
    for shape in ((1,), (16,), (4, 7), (2, 5, 3)):
        x = torch.randint(-3, 4, shape).to(dtype)
        for axis in range(len(shape)):
            graph = check(lambda x, a=axis: torch.sort(x, dim=a, descending=descending), x)
            assert not external_ops(graph)
            check(lambda x, a=axis: x.argsort(dim=a, descending=descending, stable=True), x)
    check(lambda x: torch.sort(x, 0, descending), torch.tensor(1).to(dtype))
    check(lambda x: torch.sort(x + x, 0, descending), torch.zeros(3, 0).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_stable_sorts_of_longer_rows(dtype, descending):
    torch.manual_seed(0)
    for shape, axis in (((32,), 0), ((20, 3), 0), ((3, 17), 1)):
        x = torch.randint(-3, 4, shape).to(dtype)
        graph = check(lambda x, a=axis: torch.sort(x, dim=a, descending=descending, stable=True), x)
        assert not external_ops(graph)
        check(lambda x, a=axis: torch.sort(x, a, descending), x)


@pytest.mark.parametrize("descending", [False, True])
def test_numbers_that_are_none_and_zeros_with_signs(descending):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[nan, 1.0, -0.0, inf, 0.0, nan, -inf, -0.0], [0.0, -0.0] * 4])

    def program(x):
        return torch.sort(x, 1, descending)

    check(program, x)
    values, _ = interpret(lower(record(program, [x])), [x])
    expected = program(x).values
    known = ~expected.isnan()
    assert torch.equal(values.signbit()[known], expected.signbit()[known])


def test_what_is_sorted_is_computed_once():
    graph = check(lambda x: torch.sort(x.exp(), 1), torch.randn(5, 9))
    assert not external_ops(graph)


def test_long_rows_and_partial_sorts_stay_external():
    for program in (lambda x: x.sort(0), lambda x: x[:9].topk(2), lambda x: x[:9].median(0)):
        assert external_ops(lower(record(program, [torch.randn(50)])))
