"""Signals whose handlers raise while a graph runs: what came before is done, handlers see it."""

from __future__ import annotations

import copy
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from plait_bytecode_tracer import compile
from plait_bytecode_tracer.guards.native import wait_for_native_guards

Backend = Callable[[torch.fx.GraphModule, Any], Callable[..., Any]]


class Late(Exception):
    """What a handler raises; nobody else does."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


def send(x: torch.Tensor) -> torch.Tensor:
    """An operation during which a signal arrives, once for each that is wanted."""
    if WANTED:
        signal.raise_signal(WANTED.pop())
    return x.clone()


WANTED: list[int] = []


def sending(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, in which a signal arrives at each sine."""
    for node in module.graph.nodes:
        if node.target is torch.sin:
            node.target = send
    module.recompile()
    return module


def as_captured(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return sending(module).forward


def elsewhere(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that does not tell how far its graph came."""
    return sending(copy.deepcopy(module)).forward


def careful(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend that changes inputs in the end."""
    other = sending(copy.deepcopy(module))

    def run(*given: Any) -> Any:
        return other.forward(*given)

    setattr(run, "unchanged_on_error", run)  # functions have no such attribute
    return run


def steps_of(x: torch.Tensor, total: torch.Tensor, log: list[Any]) -> Any:
    log.append("begun")
    total.add_(1)
    log.append("added")
    y = torch.sin(x)
    total.add_(2)
    log.append("ended")
    return y


def pure_steps(x: torch.Tensor, total: torch.Tensor, log: list[Any]) -> Any:
    log.append("begun")
    y = torch.sin(x * 2)
    log.append("ended")
    return y


STAGES: dict[float, list[str]] = {0: [], 1: ["begun", "added"], 3: ["begun", "added", "ended"]}
"""What the log may hold for each total, besides nothing more than what comes between."""


def interrupted(number: int, call: Callable[[], Any]) -> BaseException:
    WANTED.append(number)
    try:
        call()
    except BaseException as error:  # that is what is asked for
        return error
    raise AssertionError("nobody raised")


@pytest.mark.parametrize("backend", [as_captured, elsewhere, careful])
def test_what_came_before_is_done(backend: Backend) -> None:
    compiled = compile(steps_of, backend, fullgraph=True)
    compiled(torch.ones(2), torch.zeros(()), [])
    wait_for_native_guards()
    total: torch.Tensor = torch.zeros(())
    log: list[Any] = []
    error = interrupted(signal.SIGINT, lambda: compiled(torch.ones(2), total, log))
    assert type(error) is KeyboardInterrupt
    assert not hasattr(error, "__notes__")
    done = int(total)
    assert log in ([["begun", "added"]] if done == 1 else [["begun", "added"], [*STAGES[3]]])
    assert done in (1, 3)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    compiled(torch.ones(2), total, log)
    assert int(total) == done + 3


@pytest.mark.parametrize("backend", [as_captured, elsewhere])
def test_a_graph_without_traces_is_as_not_begun(backend: Backend) -> None:
    compiled = compile(pure_steps, backend, fullgraph=True)
    log: list[Any] = []
    error = interrupted(signal.SIGINT, lambda: compiled(torch.ones(2), torch.zeros(()), log))
    assert type(error) is KeyboardInterrupt
    assert log in ([], ["begun"])
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("backend", [as_captured, elsewhere, careful])
@pytest.mark.parametrize("breaks", [False, True])
def test_handlers_of_the_program_see_it(backend: Backend, breaks: bool) -> None:
    def function(x: torch.Tensor, total: torch.Tensor, log: list[Any]) -> Any:
        try:
            log.append("begun")
            if breaks and total.sum() >= 0:
                log.append("went on")
            total.add_(1)
            y = torch.sin(x)
            total.add_(1)
            log.append("never")
            return y
        except KeyboardInterrupt:
            log.append("handled")
            return x
        finally:
            log.append("left")

    compiled = compile(function, backend)
    compiled(torch.ones(2), torch.zeros(()), [])
    total: torch.Tensor = torch.zeros(())
    log: list[Any] = []
    WANTED.append(signal.SIGINT)
    assert torch.equal(compiled(torch.ones(2), total, log), torch.ones(2))
    expected = ["begun", "went on"][: 1 + breaks]
    assert log == [*expected, "handled", "left"]
    assert int(total) in (1, 2)


@pytest.mark.parametrize("backend", [as_captured, elsewhere])
@pytest.mark.parametrize("kind", [Late, RuntimeError, SystemExit])
def test_what_a_handler_raises_is_raised(backend: Backend, kind: type[BaseException]) -> None:
    def alarm(number: int, frame: object) -> None:
        raise kind("too late")

    signal.signal(signal.SIGALRM, alarm)
    for function in (steps_of, pure_steps):
        compiled = compile(function, backend, fullgraph=True)
        log: list[Any] = []
        error = interrupted(signal.SIGALRM, lambda: compiled(torch.ones(2), torch.zeros(()), log))
        assert type(error) is kind
        assert str(error) == "too late"
        shown = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
        assert "alarm" in shown
        assert "ended" not in log or function is steps_of


@pytest.mark.parametrize("backend", [as_captured, elsewhere])
def test_what_a_handler_does_is_done_once(backend: Backend) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    for function in (steps_of, pure_steps):
        compiled = compile(function, backend, fullgraph=True)
        log: list[Any] = []
        total: torch.Tensor = torch.zeros(())
        WANTED.append(signal.SIGALRM)
        compiled(torch.ones(2), total, log)
        assert log[-1] == "ended"
    assert seen == [signal.SIGALRM] * 2


def test_timers_leave_a_state_of_the_program() -> None:
    def function(x: torch.Tensor, total: torch.Tensor, log: list[Any]) -> Any:
        for n in range(4):
            log.append(n)
            total.add_(1)
            x = torch.tanh(x @ x)
        return x

    def alarm(number: int, frame: object) -> None:
        raise Late

    compiled = {
        each: compile(function, each, fullgraph=True)
        for each in (lambda m, i: m.forward, lambda m, i: copy.deepcopy(m).forward)
    }
    x = torch.randn(200, 200)
    for each in compiled.values():
        each(x, torch.zeros(()), [])
    signal.signal(signal.SIGALRM, alarm)
    for n in range(8):
        for each in compiled.values():
            log: list[Any] = []
            total: torch.Tensor = torch.zeros(())
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 * (n + 1))
                each(x, total, log)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Late:
                pass
            assert int(total) in (len(log), len(log) - 1)


@pytest.mark.parametrize("training", [False, True])
def test_only_graphs_that_change_tensors_hold_handlers_back(training: bool) -> None:
    seen: list[object] = []

    def looking(x: torch.Tensor) -> torch.Tensor:
        seen.append(signal.getsignal(signal.SIGINT))
        return x.clone()

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        made = copy.deepcopy(module)
        for node in made.graph.nodes:
            if node.target is torch.sin:
                node.target = looking
        made.recompile()
        return made.forward

    def program(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(torch.sin(x), mean, variance, training=training)

    inputs = torch.randn(4, 3), torch.zeros(3), torch.ones(3)
    with torch.no_grad():
        compile(program, backend=backend)(*inputs)
    assert (seen == [signal.default_int_handler]) is not training
