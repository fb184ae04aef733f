"""Programs that write over inputs, launched by Python: it writes last."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from plait_ir_lowering import lower
from plait_scheduler import OnError, Program, SharedStorage, schedule
from plait_triton_codegen import TritonOptions, build
from plait_utils import DiskCache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


def program(function, *inputs: Tensor) -> Program:
    """Of a function whose first result goes to its first input."""
    traced = make_fx(function, tracing_mode="fake")(*inputs)
    found = schedule(lower(traced, mutations={0: 0}))
    assert any(isinstance(each.storage, SharedStorage) for each in found.buffers)
    return found


def momentum(state: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return state * 0.9 + grad, grad * 2


def rows(table: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    made = table.index_copy(0, at, new)
    return made, made.exp()


def test_a_state_is_read_and_written(cache: DiskCache) -> None:
    state, grad = torch.randn(40, 30, device=DEVICE), torch.randn(40, 30, device=DEVICE)
    made = build(
        program(momentum, state, grad), cache=cache, options=TritonOptions(native_host=False)
    )
    for _ in range(3):
        wanted, version = momentum(state, grad), state._version
        (found,) = made(state, grad)
        torch.testing.assert_close(state, wanted[0])
        torch.testing.assert_close(found, wanted[1])
        assert state._version == version, "whoever calls it counts its writes"


def test_a_state_that_begins_anywhere(cache: DiskCache) -> None:
    """Kernels that C++ launches cannot: then Python does."""
    whole, grad = torch.randn(1205, device=DEVICE), torch.randn(40, 30, device=DEVICE)
    before, state = whole.clone(), whole[1:1201].view(40, 30)
    made = build(program(momentum, state.clone(), grad), cache=cache)
    made(state, grad)
    torch.testing.assert_close(state, momentum(before[1:1201].view(40, 30), grad)[0])
    assert whole[:1].equal(before[:1])
    assert whole[1201:].equal(before[1201:])


@pytest.mark.parametrize("is_native", [False, True])
def test_rows_are_as_they_were_where_an_index_is_wrong(cache: DiskCache, is_native: bool) -> None:
    table, new = torch.randn(64, 8, device=DEVICE), torch.randn(2, 8, device=DEVICE)
    at = torch.tensor([3, 60], device=DEVICE)
    found = program(rows, table, new, at)
    assert any(isinstance(step, OnError) for step in found.steps)
    made = build(found, cache=cache, options=TritonOptions(native_host=is_native))
    before = table.clone()
    with pytest.raises(IndexError, match="out of bounds for dimension with size 64"):
        made(table, new, at + 10)
    assert table.equal(before)
    wanted = rows(table, new, at)
    (found_values,) = made(table, new, at)
    torch.testing.assert_close(table, wanted[0])
    torch.testing.assert_close(found_values, wanted[1])
