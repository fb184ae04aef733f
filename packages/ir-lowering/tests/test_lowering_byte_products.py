"""Products of bytes, whose sums are integers: loops where they are small, else torch's kernel."""

from __future__ import annotations

import pytest
import torch
from lowering_oracle import check

from plait_ir_lowering import external_ops


def matrices(rows, inner, columns):
    torch.manual_seed(rows)
    sizes = (rows, inner), (columns, inner)
    return [torch.randint(-128, 128, size, dtype=torch.int8) for size in sizes]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 7, 5), (2, 300, 4)], ids=str)
def test_small_ones_are_loops(sizes):
    graph = check(lambda a, b: torch._int_mm(a, b.t()).float() * 0.5, *matrices(*sizes))
    assert not external_ops(graph)


def test_others_are_calls_of_the_kernel():
    graph = check(lambda a, b: torch._int_mm(a, b.t()), *matrices(32, 64, 48))
    assert external_ops(graph) == {"aten::_int_mm.out": 1}


def test_the_sums_of_extremes_are_exact():
    bytes_ = torch.full((2, 4096), -128, dtype=torch.int8)
    check(lambda a: torch._int_mm(a, a.t()), bytes_)
