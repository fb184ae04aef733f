"""Positions that a compiler knows before it runs: small loops, of which it sees every number."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import CPU, both

from plait_ir_lowering import (
    Buffer,
    Const,
    Definition,
    DType,
    Graph,
    IndexValue,
    Layout,
    Op,
    Pointwise,
    TensorRef,
    Var,
    as_index,
    from_torch_dtype,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("size", [8, 12, 16, 24])
@pytest.mark.parametrize("limit", [1, 4, 11])
@pytest.mark.sampled(4)
def test_choices_by_position(dtype, size, limit):
    """GCC 12 takes one lane's choice for all where it has worked out a mask of AVX-512."""
    place = Var("i0", as_index(size))
    ours = from_torch_dtype(dtype)
    by_limit = Op("lt", [IndexValue(place.expr), Const(limit, DType.i64)])
    by_row = Op("eq", [IndexValue(place.expr // 4), Const(0, DType.i64)])
    layout = Layout.of([size], [1])
    buffers = [Buffer(name, ours, CPU, layout) for name in ("limited", "first_row")]
    definitions = [
        Definition(
            (made,), Pointwise((place,), Op("where", [chosen, Const(1, ours), Const(0, ours)]))
        )
        for made, chosen in zip(buffers, (by_limit, by_row), strict=True)
    ]
    graph = Graph("g", (), definitions, [TensorRef(made.name) for made in buffers])
    (limited, first_row), _ = both(graph, [])
    places = torch.arange(size)
    assert torch.equal(limited, (places < limit).to(dtype))
    assert torch.equal(first_row, (places < 4).to(dtype))
