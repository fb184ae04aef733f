"""Large results are written past the caches, and are the same numbers."""

from __future__ import annotations

import pytest
import torch
from cpp_graphs import pointwise_graph

from plait_cpp_codegen import build
from plait_cpp_codegen.kernels.emit import render_kernel
from plait_ir_lowering import Graph, Op
from plait_scheduler import schedule


def _doubled(x: torch.Tensor) -> Graph:
    return pointwise_graph([x], {"y": lambda a: Op("add", [a, a])})


def _body(graph: Graph) -> str:
    (kernel,) = schedule(graph).kernels
    return render_kernel(kernel, 64).body


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4096, 1024), torch.float32), ((2048, 1024), torch.float64), ((8192, 1024), torch.bfloat16)],
)
def test_large_results_go_past_the_caches(shape, dtype):
    graph = _doubled(torch.empty(shape, dtype=dtype))
    body = _body(graph)
    assert "store_past<L>(" in body
    assert body.rstrip().endswith("stored_past();")


def test_what_a_cache_holds_is_stored_in_the_usual_way():
    assert "past" not in _body(_doubled(torch.empty(4095, 1024)))


@pytest.mark.parametrize(("columns", "dtype"), [(1023, torch.float32), (1024, torch.bfloat16)])
def test_values_are_the_same_at_any_place_of_a_line(columns, dtype):
    """Rows of 1023 begin anywhere in a line of the cache."""
    torch.manual_seed(0)
    x = torch.randn(8300, 2 * columns).to(dtype)[:, :columns]
    assert "store_past<L>(" in _body(_doubled(x))
    (found,) = build(schedule(_doubled(x)))(x)
    assert torch.equal(found, x + x)
