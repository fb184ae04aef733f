"""Programs that `torch.export` has made, with what they check of their inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import plait


@pytest.fixture(scope="module")
def exported():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    rows = Dim("rows", min=4, max=64)
    return export(model, (torch.randn(6, 8),), dynamic_shapes=({0: rows},)).module()


def test_an_exported_program_is_one_graph(exported):
    fast, x = plait.compile(exported, fullgraph=True, options={"strict": True}), torch.randn(6, 8)
    torch.testing.assert_close(fast(x), exported(x))
    assert [each.outcome for each in plait.report(fast).graphs] == ["compiled"]


@pytest.mark.parametrize("sizes", [(6, 9), (65, 8), (3, 8)], ids=str)
def test_inputs_that_it_refuses_are_refused(exported, sizes):
    fast = plait.compile(exported)
    fast(torch.randn(6, 8))
    with pytest.raises(AssertionError) as wanted:
        exported(torch.randn(*sizes))
    with pytest.raises(AssertionError) as found:
        fast(torch.randn(*sizes))
    assert str(found.value) == str(wanted.value)
