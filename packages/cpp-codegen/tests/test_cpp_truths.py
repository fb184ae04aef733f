"""Loops over truth values alone run over bytes, and are right for every value."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import CppOptions, build, render
from plait_ir_lowering import Const, DType, Op
from plait_scheduler import schedule

TRUE = Const(True, DType.bool_)
COMPUTES = {
    "logical_and": lambda a, b: Op("logical_and", [a, b]),
    "logical_or": lambda a, b: Op("logical_or", [a, b]),
    "logical_xor": lambda a, b: Op("logical_xor", [a, b]),
    "logical_not": lambda a, b: Op("logical_not", [Op("logical_and", [a, b])]),
    "eq": lambda a, b: Op("eq", [a, b]),
    "ne": lambda a, b: Op("ne", [a, b]),
    "lt": lambda a, b: Op("lt", [a, b]),
    "le": lambda a, b: Op("le", [a, b]),
    "gt": lambda a, b: Op("gt", [a, b]),
    "ge": lambda a, b: Op("ge", [a, b]),
    "where": lambda a, b: Op("where", [a, Op("logical_not", [b]), Op("logical_xor", [a, TRUE])]),
    "maximum": lambda a, b: Op("maximum", [a, b]),
    "minimum": lambda a, b: Op("minimum", [a, b]),
}
EAGER = {
    "logical_not": lambda a, b: ~(a & b),
    "where": lambda a, b: torch.where(a, ~b, ~a),
    "maximum": torch.logical_or,
    "minimum": torch.logical_and,
}


@pytest.mark.parametrize("shape", [(3,), (70, 33), (1024,), (5001,)])
@pytest.mark.parametrize("vector_bytes", [16, 64])
def test_operations_on_truth_values(shape, vector_bytes):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(shape, generator=generator) > 0.5 for _ in range(2))
    program = schedule(pointwise_graph([a, b], COMPUTES))
    results = build(program, options=CppOptions(vector_bytes=vector_bytes))(a, b)
    for name, result in zip(COMPUTES, results, strict=True):
        expected = EAGER.get(name) or getattr(torch, name)
        assert torch.equal(result, expected(a, b)), name
        assert set(result.view(torch.uint8).flatten().tolist()) <= {0, 1}


def test_bytes_other_than_0_and_1_are_true():
    a = torch.arange(4096, dtype=torch.int64).to(torch.uint8).view(torch.bool)
    b = torch.arange(4096, dtype=torch.int64).flip(0).to(torch.uint8).view(torch.bool)
    compute = {"and": COMPUTES["logical_and"]}
    (result,) = build(schedule(pointwise_graph([a, b], compute)))(a, b)
    wanted = (a.view(torch.uint8) != 0) & (b.view(torch.uint8) != 0)
    assert torch.equal(result, wanted)


def test_a_vector_has_as_many_lanes_as_bytes():
    a = torch.zeros(4096, dtype=torch.bool)
    program = schedule(pointwise_graph([a, a], {"and": COMPUTES["logical_and"]}))
    assert "vectors of 32 along" in render(program, 32)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_sums_and_extremes_of_bytes(dtype):
    a = torch.arange(5000, dtype=torch.int64).to(dtype)
    b = a.flip(0)
    names = ("add", "sub", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor")
    computes = {name: lambda x, y, name=name: Op(name, [x, y]) for name in names}
    results = build(schedule(pointwise_graph([a, b], computes)))(a, b)
    for name, result in zip(names, results, strict=True):
        assert torch.equal(result, getattr(torch, name)(a, b)), name
