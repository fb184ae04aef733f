"""Searches in sorted sequences, and in those that are not: at the places at which eager looks."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import check, record

from plait_ir_lowering import external_ops, lower

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8)


def sequence(size, dtype):
    return torch.randint(0, 50, size).sort(-1).values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("right", [False, True])
def test_searches(dtype, right):
    torch.manual_seed(0)
    for count in (0, 1, 2, 7, 8, 33):
        row, x = sequence((count,), dtype), sequence((5, 4), dtype)
        graph = check(lambda b, x: torch.bucketize(x, b, right=right), row, x)
        assert not external_ops(graph)
        rows, x = sequence((3, count), dtype), sequence((3, 6), dtype)
        check(lambda b, x: torch.searchsorted(b, x, right=right, out_int32=True), rows, x)
        check(lambda b: torch.bucketize(3, b, right=right), row)
        check(lambda b: torch.searchsorted(b, 3.5, side="right" if right else "left"), row)


def test_what_is_not_sorted_and_what_is_no_number():
    torch.manual_seed(0)
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, 2.5])
    for row in (torch.randn(13), torch.tensor([nan, 1.0, nan, 2.0, nan]), torch.tensor([inf, inf])):
        for right in (False, True):
            check(lambda b, x, right=right: torch.searchsorted(b, x, right=right), row, x)


def test_types_are_joined_as_eager_joins_them():
    row = torch.tensor([1, 2, 2, 3])
    for x in (torch.tensor([1.5, 2.0]), torch.tensor(2.5), torch.tensor([2, 3], dtype=torch.int8)):
        check(lambda b, x: torch.searchsorted(b, x), row, x)
        check(lambda b, x: torch.bucketize(x, b, right=True), row, x)


def test_boundaries_that_are_computed_are_stored_first():
    row, x = torch.randn(9).sort().values, torch.randn(20)
    graph = check(lambda b, x: torch.bucketize(x, b * 2 + 1), row, x)
    assert not external_ops(graph)


def test_what_stays_external():
    row, order = torch.randn(9), torch.randn(9).argsort()
    x = torch.randn(20)
    graph = lower(record(lambda b, o, x: torch.searchsorted(b, x, sorter=o), [row, order, x]))
    assert external_ops(graph)
    long = torch.arange(70_000.0)
    assert external_ops(lower(record(lambda b, x: torch.bucketize(x, b), [long, x])))
