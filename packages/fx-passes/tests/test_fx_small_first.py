"""Exact arithmetic is done where there are fewest elements, and only there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fx_oracle import check_program, trace

from plait_fx_passes import run_passes, to_aten
from plait_fx_passes.passes import DEAD_CODE, SMALL_FIRST

CAST, ADD, MUL = "aten._to_copy.default", "aten.add.Tensor", "aten.mul.Tensor"


def table(rows=16, columns=6):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def sizes(program, *inputs):
    """How many elements each call of arithmetic has; values and layouts are as in eager."""
    check_program(program, list(inputs), tolerance=0.0)
    graph = to_aten(trace(program), list(inputs))
    left = run_passes(graph, (SMALL_FIRST, DEAD_CODE), verify_each=True)
    nodes = [node for node in left.graph.nodes if node.op == "call_function"]
    kinds = (CAST, ADD, MUL)
    return [node.meta["val"].numel() for node in nodes if str(node.target) in kinds]


ROWS = torch.tensor([3, 0, 3])


@pytest.mark.parametrize(
    ("program", "elements"),
    [
        (lambda x, i: F.embedding(i, x.double()), [18]),
        (lambda x, i: x.half()[i], [18]),
        (lambda x, i: x.double().index_select(0, i), [18]),
        (lambda x, i: x.double().gather(0, i.view(3, 1)), [3]),
        (lambda x, i: x.double()[2], [6]),
        (lambda x, i: x.double()[:, :2].neg(), [32]),
        (lambda x, i: (x * 2 + 1)[i], [18, 18]),
        (lambda x, i: (d := x.double())[2].neg() + d[4:6].neg(), [6, 12, 12]),
        (lambda x, i: x[:1].expand(16, 6).double().neg(), [6]),
        (lambda x, i: (x[:1].expand(16, 6) * 2 + 1).neg(), [6, 6]),
        (lambda x, i: x[:1].repeat(16, 1).double(), [6]),
        (lambda x, i: x[:2].unsqueeze(1).expand(2, 4, 6).reshape(8, 6).double(), [12]),
    ],
)
def test_arithmetic_moves_to_where_there_is_less(program, elements):
    assert sizes(program, table(), ROWS) == elements


@pytest.mark.parametrize(
    ("program", "elements"),
    [
        (lambda x, i: ((d := x.double())[i], d.neg()), [96]),  # all of it is needed
        (lambda x, i: ((d := x.double())[i], d), [96]),
        (lambda x, i: (d := x.double())[:8].neg() + d[8:].neg(), [96, 48]),  # so are both parts
        (lambda x, i: x.double()[:9].neg(), [96]),
        (lambda x, i: x.double()[:, :2], [96]),  # the caller gets a view
        (lambda x, i: x.double()[:, :2].mm(x[:2].double()), [96, 12]),  # rounds by layout
        (lambda x, i: x.exp()[i] * 2, [18]),  # rounds by place
        (lambda x, i: (x * x.double())[i], [96, 96]),  # of two tensors
        (lambda x, i: x.double().view(8, 12)[i].neg(), [96]),
        (lambda x, i: (y := x[:1].expand(16, 6)).double().neg() * y, [6, 96]),
        (lambda x, i: x[:9].expand(9, 6).double().neg(), [54]),  # spreads nothing
    ],
)
def test_other_arithmetic_stays(program, elements):
    assert sizes(program, table(), ROWS) == elements


def test_indices_out_of_bounds_still_raise():
    def program(x, i):
        return F.embedding(i, x.double())

    left = run_passes(to_aten(trace(program), [table(), ROWS]), (SMALL_FIRST, DEAD_CODE))
    with pytest.raises(IndexError):
        left.module()(table(), ROWS + 14)


def test_nothing_is_left_of_a_view_that_needs_other_strides():
    """Rows of elements that are one can be flattened as they are, and not as they are computed."""
    spread = torch.ones(1).as_strided((16,), (0,))
    assert sizes(lambda x: (x.expand(2, 16).flatten() * 2).cumsum(-1), spread) == [32]
