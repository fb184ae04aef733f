"""Locks that a traced call takes: held while its effects happen, never waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile, compiled_function_of

LOCK = threading.Lock()
AGAIN = threading.RLock()


def run_graph(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return module.forward


STATE = {"count": 0}


def counted(x: torch.Tensor) -> torch.Tensor:
    with LOCK:
        STATE["count"] += 1
        return x * 2


def test_a_call_that_takes_a_lock_is_one_graph_and_leaves_it_free() -> None:
    STATE["count"] = 0
    compiled = compile(counted, run_graph, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2))
        assert not LOCK.locked()
    assert STATE["count"] == 3


def test_a_lock_that_another_thread_holds_is_waited_for() -> None:
    STATE["count"] = 0
    compiled = compile(counted, run_graph)
    compiled(torch.ones(2))
    with LOCK:
        thread = threading.Thread(target=compiled, args=(torch.ones(2),))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert STATE["count"] == 1
    thread.join()
    assert STATE["count"] == 2
    assert not LOCK.locked()


def test_counts_under_a_lock_are_not_lost_between_threads() -> None:
    STATE["count"] = 0
    compiled = compile(counted, run_graph)

    def many() -> None:
        for _ in range(50):
            compiled(torch.ones(2))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert STATE["count"] == 200


def test_what_a_graph_raises_leaves_the_lock_free() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with LOCK:
            return torch.linalg.inv(x)

    compiled = compile(function, run_graph)
    compiled(torch.eye(2))
    with pytest.raises(RuntimeError):
        compiled(torch.zeros(2, 2))
    assert not LOCK.locked()


def test_a_break_inside_takes_the_lock_where_the_program_does() -> None:
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with LOCK:
            seen.append(LOCK.locked())
            if y.sum() > 0:
                y = y * 2
        with AGAIN, AGAIN:
            y = y + 1
        seen.append(LOCK.locked())
        return y

    compiled = compile(function, run_graph)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert seen == [True, False] * 2
    assert compiled_function_of(compiled).breaks


def test_what_is_printed_under_a_lock_is_printed_while_it_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = []

    class Stream:
        def write(self, text: str) -> None:
            held.append(LOCK.acquire(blocking=False))

        def flush(self) -> None:
            pass

    def function(x: torch.Tensor) -> torch.Tensor:
        with LOCK:
            print("inside")
        return x

    monkeypatch.setattr("sys.stdout", Stream())
    compiled = compile(function, run_graph)
    compiled(torch.ones(2))
    assert held == [False, False]
