"""Scatters for a GPU where deterministic algorithms are asked for: what has a fixed order, what any
order does, and what stays a call of ATen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import (
    Graph,
    LoweringOptions,
    Reduction,
    Scan,
    Scatter,
    Sym,
    Var,
    as_index,
    external_ops,
    lower,
    verify,
)
from plait_ir_lowering.rules.ordered_sums import rows_of
from plait_ir_lowering.rules.writes import Writes

INDEX = torch.int64


def _lowered(function: Callable[..., torch.Tensor], *shapes) -> Graph:
    """The graph of a function of tensors on a GPU that need not be there."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty(size, dtype=dtype, device="cuda:0") for size, dtype in shapes]
        traced = make_fx(lambda *given: (function(*given),))(*fakes)
    graph = lower(traced, options=LoweringOptions(deterministic=True))
    verify(graph)
    return graph


def _bodies(graph: Graph) -> list[str]:
    return [type(definition.body).__name__ for definition in graph.definitions]


def _added(
    rows: int, points: int, columns: int, dtype: torch.dtype = torch.float32, **how
) -> Graph:
    given = ((rows, columns), dtype), ((points,), INDEX), ((points, columns), dtype)
    return _lowered(lambda x, i, s: x.index_add(0, i, s), *given)


def test_few_pairs_of_rows_and_points_are_all_looked_at() -> None:
    graph = _added(1000, 500, 8)
    assert not external_ops(graph)
    assert [name for name in _bodies(graph) if name != "Pointwise"] == ["Reduction"]
    (sums,) = [d.body for d in graph.definitions if isinstance(d.body, Reduction)]
    assert len(sums.ranges) == 2


@pytest.mark.parametrize(
    ("points", "columns", "levels"), [(1 << 20, 1, 2), (1 << 20, 64, 4), (100_003, 8, 3)]
)
def test_many_points_are_sorted(points: int, columns: int, levels: int) -> None:
    """And summed up along chunks of chunks."""
    graph = _added(1 << 20, points, columns)
    assert external_ops(graph) == {"aten::sort.stable": 1}
    scans = [d.body for d in graph.definitions if isinstance(d.body, Scan)]
    assert len(scans) == levels
    assert sum(isinstance(d.body, Scatter) for d in graph.definitions) == 1


CALLS = {
    "too many sums": lambda: _added(1 << 20, 1 << 20, 512),
    "64-bit rows": lambda: _lowered(
        lambda x, i, s: x.scatter_add(0, i, s),
        *(((1 << 31,), torch.float32), ((100,), INDEX), ((100,), torch.float32)),
    ),
    "complex numbers": lambda: _added(10, 10, 3, torch.complex64),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_atens_kernel_is_kept_for(name: str) -> None:
    (call,) = external_ops(CALLS[name]())
    assert call in ("aten::index_add", "aten::scatter_add")


def test_sizes_that_only_the_run_knows_have_no_rows() -> None:
    count = Sym("s0").expr
    point = Var("w0", count)
    assert rows_of(Writes((point,), [point.expr]), [as_index(10)]) is None
    known = Var("w0", 5)
    assert rows_of(Writes((known,), [known.expr]), [count]) is None
    assert rows_of(Writes((known,), [known.expr]), [as_index(10)]) is not None


GIVEN = ((10, 4), torch.float32), ((6, 4), INDEX), ((6, 4), torch.float32)
PUT = ((10,), torch.float32), ((6,), INDEX), ((6,), torch.float32)
REFUSED = {
    "scatter, multiplied": (GIVEN, lambda x, i, s: x.scatter(0, i, s, reduce="multiply")),
    "scatter, added": (GIVEN, lambda x, i, s: x.scatter(0, i, s, reduce="add")),
    "scatter_reduce, prod": (GIVEN, lambda x, i, s: x.scatter_reduce(0, i, s, "prod")),
    "index_reduce": (PUT, lambda x, i, s: x.index_reduce(0, i, s, "amax")),
    "put": (PUT, lambda x, i, s: x.put(i, s)),
    "put, accumulated": (PUT, lambda x, i, s: x.put(i, s, accumulate=True)),
    "assigned": (GIVEN, lambda x, i, s: x.scatter(0, i, s)),
    "rows assigned": (PUT, lambda x, i, s: x.index_copy(0, i, s)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_or_where_the_last_one_stays_is_called(name: str) -> None:
    given, function = REFUSED[name]
    assert len(external_ops(_lowered(function, *given))) == 1


INTEGERS = ((10, 4), torch.int16), ((6, 4), INDEX), ((6, 4), torch.int16)
FREE = {
    "integers": (INTEGERS, lambda x, i, s: x.scatter_add(0, i, s)),
    "largest": (GIVEN, lambda x, i, s: x.scatter_reduce(0, i, s, "amax")),
    "least": (GIVEN, lambda x, i, s: x.scatter_reduce(0, i, s, "amin", include_self=False)),
    "one value": (GIVEN, lambda x, i, s: x.scatter(0, i, 2.5)),
    "filled": (PUT, lambda x, i, s: x.index_fill(0, i, 2.5)),
}


@pytest.mark.parametrize("name", FREE)
def test_what_any_order_does_is_combined_atomically(name: str) -> None:
    given, function = FREE[name]
    graph = _lowered(function, *given)
    assert not external_ops(graph)
    assert "Scatter" in _bodies(graph)
    assert "Reduction" not in _bodies(graph)
