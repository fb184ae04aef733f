"""Functions under debuggers and coverage tools, and code that has no source."""

from __future__ import annotations

import contextlib
import sys
import threading
import types

import pytest
import torch
from tracer_oracle import check, compiled

X = torch.arange(4.0)


def program(x, n=3):
    found = []
    for i in range(n):
        y = x + i
        print("at", i)
        try:
            if i == 1:
                raise KeyError(i)
        except KeyError as error:
            found.append(error.args)
        found.append(y.sum().item())
    return found, x * n


@contextlib.contextmanager
def settrace(seen):
    def tracer(frame, event, argument):
        frame.f_trace_opcodes = True
        seen.add((event, frame.f_code.co_name))
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def setprofile(seen):
    sys.setprofile(lambda frame, event, argument: seen.add((event, frame.f_code.co_name)))
    try:
        yield
    finally:
        sys.setprofile(None)


@contextlib.contextmanager
def monitoring(seen):
    """Every event that changes a function's bytecode, as coverage tools ask for them."""
    events, tool = sys.monitoring.events, 4
    sys.monitoring.use_tool_id(tool, "tests")
    wanted = [events.LINE, events.INSTRUCTION, events.JUMP, events.BRANCH, events.PY_RETURN]
    wanted += [events.PY_START, events.CALL]
    for event in wanted:
        sys.monitoring.register_callback(
            tool, event, lambda code, *rest, event=event: seen.add((event, code.co_name))
        )
    sys.monitoring.set_local_events(tool, program.__code__, sum(wanted))
    try:
        yield
    finally:
        sys.monitoring.set_local_events(tool, program.__code__, 0)
        for event in wanted:
            sys.monitoring.register_callback(tool, event, None)
        sys.monitoring.free_tool_id(tool)


TOOLS = [settrace, setprofile, *([monitoring] if sys.version_info >= (3, 12) else [])]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_watched_function_is_right(tool):
    with tool(set()) as _:
        check(program, X, calls=3)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_function_compiled_before_it_is_watched_is_right(tool):
    made = compiled(program)
    expected = program(X)
    made(X)
    seen = set()
    with tool(seen):
        first = made(X)
        program(X)
    assert seen
    for found in (first, made(X)):
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of 3.12")
def test_functions_compiled_while_watched_have_plain_bytecode():
    made = compiled(program)
    with monitoring(set()):
        program(X)
        made(X)
    names = {
        instruction.opname
        for member in made.family()
        for instruction in __import__("dis").get_instructions(member.function)
    }
    assert not any(name.startswith("INSTRUMENTED") for name in names)


def test_breakpoint_sees_the_frame_of_the_user(monkeypatch):
    seen = []

    def hook(*args, **kwargs):
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_name, frame.f_lineno, sorted(frame.f_locals)))

    def stops(x):
        y = x + 1
        breakpoint()
        return y * 2

    monkeypatch.setattr(sys, "breakpointhook", hook)
    made = compiled(stops)
    for call in (stops, made, made):
        assert torch.equal(call(X), (X + 1) * 2)
    name, line, names = seen[0]
    for other_name, other_line, other_names in seen[1:]:
        assert (other_name, other_line) == (name, line)
        assert set(names) <= set(other_names)


def test_code_without_lines_or_file():
    code = program.__code__.replace(co_linetable=b"", co_filename="<no such file>")
    bare = types.FunctionType(code, globals(), "bare", (2,))
    check(bare, X, calls=2)


def test_code_of_a_string():
    space = {"torch": torch}
    exec("def made(x):\n  y = x + 1\n  print(y.shape)\n  return y.sum().item() + x", space)
    check(space["made"], X, calls=2)


def replaced(x):
    return x - 1


def test_code_that_a_tool_has_replaced():
    def original(x):
        return x + 1

    made = compiled(original)
    assert torch.equal(made(X), X + 1)
    original.__code__ = replaced.__code__
    assert torch.equal(made(X), X - 1)


def test_trace_functions_of_another_thread():
    made, found = compiled(program), []

    def run():
        with settrace(set()):
            found.append(made(X))

    thread = threading.Thread(target=run)
    thread.start()
    found.append(made(X))
    thread.join()
    assert found[0][0] == found[1][0] == program(X)[0]
