"""Compiled programs that fail, beside threads that draw from torch's default generator.

Where those draw nothing, the numbers are eager's; where they do, no number comes twice.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import plait
import plait_bytecode_tracer.rewinding
from plait_bytecode_tracer.guards.native import wait_for_native_guards
from plait_utils.draws import draws_before

DTYPE = torch.float64
TABLE = torch.arange(12.0, dtype=DTYPE).reshape(4, 3)
LAYER = torch.nn.Linear(3, 3).double()


def before(place: torch.Tensor) -> torch.Tensor:
    first = torch.rand(3, dtype=DTYPE)
    dropped = F.dropout(TABLE, 0.3)
    found = F.embedding(place, TABLE)
    return torch.cat([first, torch.rand(3, dtype=DTYPE) + (dropped.sum() + found.sum()) * 0])


def between(place: torch.Tensor) -> torch.Tensor:
    first = torch.rand(3, dtype=DTYPE)
    second = torch.rand(3, dtype=DTYPE)[place]
    return torch.cat([first, second[:1], torch.rand(3, dtype=DTYPE) * 1])


def trained(place: torch.Tensor) -> torch.Tensor:
    found = F.embedding(place, TABLE)
    hidden = F.dropout(LAYER(F.dropout(LAYER(found), 0.2)), 0.2)
    return torch.rand(3, dtype=DTYPE) + hidden.sum() * 0


def normal(place: torch.Tensor) -> torch.Tensor:
    few, many = torch.randn(3, dtype=DTYPE), torch.randn(5, 5)
    return torch.cat([few, torch.randn(3, dtype=DTYPE) + (many[place].sum() * 0)])


FUNCTIONS = [before, between, trained, normal]
PLACES = (0, 9, 1, 9, 9, 2)


def draw() -> torch.Tensor:
    return torch.rand(3, dtype=DTYPE)


def drawn(function: Callable[..., torch.Tensor], place: int) -> list[float]:
    """What a call draws, none where it raises."""
    try:
        found: list[float] = function(torch.tensor([place])).tolist()
    except IndexError:
        return []
    return found


@pytest.fixture(autouse=True)
def native() -> None:
    """Compare and set are one only with the native extensions."""
    wait_for_native_guards()


@pytest.fixture
def company() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Another thread, which is there all the time; calls a function in it."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        yield lambda function: executor.submit(function).result()


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_idle_threads_change_nothing(function: Callable[..., Any]) -> None:
    compiled = plait.compile(function, fullgraph=True, options={"strict": True})
    found = []
    for each in (function, compiled):
        torch.manual_seed(5)
        found.append([n for place in PLACES for n in (*drawn(each, place), *draw().tolist())])
    assert found[0] == found[1]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_others_draw_meanwhile_stays_theirs(
    function: Callable[..., Any], company: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They draw when a graph has failed, as much as it draws itself, or in its midst."""
    found: list[float] = []
    told: list[int | None] = []
    failed = plait_bytecode_tracer.rewinding.Rewinding.failed

    def after(self: Any, error: BaseException) -> Any:
        told.append(draws_before(error))
        found.extend(company(draw).tolist())
        return failed(self, error)

    monkeypatch.setattr(plait_bytecode_tracer.rewinding.Rewinding, "failed", after)
    compiled = plait.compile(function, fullgraph=True, options={"strict": True})
    torch.manual_seed(5)
    for place in PLACES:
        found += drawn(compiled, place)
        found += draw().tolist()
    assert len(told) == 3
    assert None not in told
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_threads_that_fail_get_different_numbers(function: Callable[..., Any]) -> None:
    compiled = plait.compile(function, fullgraph=True, options={"strict": True})
    drawn(compiled, 0)
    found: list[float] = []

    def many(number: int) -> None:
        mine: list[float] = []
        for place in range(100):
            if number == 3:
                mine += draw().tolist()
            else:
                mine += drawn(compiled, 9 if (place + number) % 3 else 0)
        found.extend(mine)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(set(found)) == len(found) > 300


def divided(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return (x % by) + torch.rand(2)


def picked(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    found = torch.rand(3)
    return found[by + 5]


@pytest.mark.usefixtures("company")
@pytest.mark.parametrize("function", [divided, picked])
def test_what_is_drawn_again_changes_no_input(function: Callable[..., Any]) -> None:
    found = []
    for each in (function, plait.compile(function)):
        x = torch.tensor([1, 2])
        torch.manual_seed(5)
        with pytest.raises((RuntimeError, IndexError)):
            each(x, torch.tensor([0, 1]))
        found.append((x.tolist(), x._version, draw().tolist()))
    assert found[0] == found[1]
