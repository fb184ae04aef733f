"""Coverage tools and debuggers see each line of a compiled function, whenever they come."""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import sys
import threading

import pytest
import torch
from tracer_oracle import compiled

from plait_bytecode_tracer import compile_module

X = torch.arange(4.0)


def helper(x):
    y = x * 2
    return y - 1


def program(x, flag=True):
    if flag:
        return helper(x) + 1
    return x


LINES = {helper.__code__.co_firstlineno + n for n in (1, 2)}
LINES |= {program.__code__.co_firstlineno + n for n in (1, 2)}


class Net(torch.nn.Module):
    def forward(self, x):
        return program(x)


@contextlib.contextmanager
def trace_function(seen):
    """As debuggers before Python 3.14 and coverage before 3.12 watch."""

    def tracer(frame, event, argument):
        if frame.f_code.co_filename != __file__:
            return None
        if event == "line":
            seen.add(frame.f_lineno)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def tool(callbacks):
    monitoring, number = sys.monitoring, sys.monitoring.DEBUGGER_ID
    monitoring.use_tool_id(number, "a tool")
    for event, callback in callbacks.items():
        monitoring.register_callback(number, event, callback)
    try:
        yield number
    finally:
        monitoring.set_events(number, 0)
        for function in (helper, program, Net.forward):
            monitoring.set_local_events(number, function.__code__, 0)
        for event in callbacks:
            monitoring.register_callback(number, event, None)
        monitoring.free_tool_id(number)


def _note(seen):
    return lambda code, line: seen.add(line) if code.co_filename == __file__ else None


@contextlib.contextmanager
def line_events(seen):
    """A tool that asks for lines everywhere."""
    events = sys.monitoring.events
    with tool({events.LINE: _note(seen)}) as number:
        sys.monitoring.set_events(number, events.LINE)
        yield


@contextlib.contextmanager
def starts_then_lines(seen):
    """As coverage does with its core "sysmon": where a function starts, ask for its lines."""
    events = sys.monitoring.events

    def start(code, offset):
        if code.co_filename == __file__:
            sys.monitoring.set_local_events(number, code, events.LINE)
        return sys.monitoring.DISABLE

    with tool({events.PY_START: start, events.LINE: _note(seen)}) as number:
        sys.monitoring.set_events(number, events.PY_START)
        sys.monitoring.restart_events()
        yield


@contextlib.contextmanager
def lines_of_one_function(seen):
    """As a debugger with a breakpoint in a function."""
    events = sys.monitoring.events
    with tool({events.LINE: _note(seen)}) as number:
        for function in (helper, program, Net.forward):
            sys.monitoring.set_local_events(number, function.__code__, events.LINE)
        yield


TOOLS = [trace_function]
if sys.version_info >= (3, 12):
    TOOLS += [line_events, starts_then_lines, lines_of_one_function]
by_tool = pytest.mark.parametrize("watch", TOOLS, ids=lambda watch: watch.__name__)


@by_tool
@pytest.mark.parametrize("calls_before", [0, 1, 6], ids="{} calls before".format)
@pytest.mark.parametrize("native", [False, True], ids=["Python", "native"])
@pytest.mark.parametrize("kind", ["function", "module"])
def test_lines_are_seen_whenever_watching_begins(watch, calls_before, native, kind, caplog):
    def compile_function(function):
        return compiled(function, native_guards=native)

    made = compile_function(program)
    if kind == "module":
        made = compile_module(Net(), compile_function)
    for _ in range(calls_before):
        assert torch.equal(made(X), program(X))
    seen = set()
    with watch(seen):
        results = [made(X) for _ in range(3)]
    assert seen >= LINES
    assert all(torch.equal(result, program(X)) for result in results)
    assert sum("runs eagerly while" in record.message for record in caplog.records) == 1
    seen.clear()
    for _ in range(4):
        assert torch.equal(made(X), program(X))
    assert not seen


def test_what_follows_a_breakpoint_is_watched(monkeypatch):
    """A debugger is called by `breakpoint()`, and watches from there on."""
    seen = set()

    def stops(x):
        y = x + 1
        breakpoint()
        return helper(y)

    made = compiled(stops)
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            hook = lambda: stack.enter_context(trace_function(seen))
            monkeypatch.setattr(sys, "breakpointhook", hook)
            assert torch.equal(made(X), (X + 1) * 2 - 1)
        assert seen >= {helper.__code__.co_firstlineno + n for n in (1, 2)}
        assert stops.__code__.co_firstlineno + 3 in seen
        seen.clear()


def test_calls_stay_compiled_for_a_profiler():
    made = compiled(program)
    made(X)
    profile = cProfile.Profile()
    profile.enable()
    try:
        for _ in range(3):
            made(X)
    finally:
        profile.disable()
    names = {name for _, _, name in pstats.Stats(profile).stats}
    assert "helper" not in names


def test_other_threads_stay_compiled():
    """A trace function is of one thread."""
    made, seen, done = compiled(program), set(), threading.Event()
    made(X)
    go = threading.Event()

    def watched():
        with trace_function(seen):
            made(X)
            done.set()
            go.wait(60)

    thread = threading.Thread(target=watched)
    thread.start()
    assert done.wait(60)
    assert torch.equal(made(X), program(X))
    assert len(made.entries) == 1
    go.set()
    thread.join()
    assert seen >= LINES
