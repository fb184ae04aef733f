"""What happens when a graph raises at run time: eager's error, at the user's line.

A compiled program computes new values, and writes to inputs only after the last step that can
fail, so when it raises nothing has happened yet: the captured graph is run in its place, and
raises what eager raises, after the changes that eager makes. Should it not raise, the program was
at fault, and the call has its right result nevertheless. The tracer does better where it can make
the whole call anew as Python: it calls `unchanged_on_error` of what runs the graph, which raises
before anything has happened.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait.record import Runner
from plait_utils import get_logger

if TYPE_CHECKING:
    from torch import fx

USER_LINE = re.compile(r"^(?P<file>.+?):(?P<number>\d+) in (?P<function>[^:]+): (?P<text>.*)$")
"""How the tracer writes a user's line."""


class _ProgramError(Exception):
    """The compiled program raised, before anything was written back; the cause says what."""


def protect(
    program: Runner, wrap: Callable[[Runner], Runner], captured: fx.GraphModule, name: str
) -> Runner:
    """`wrap(program)`, but the captured graph takes over where the program raises.

    Args:
        program: the compiled program, which where it raises has changed nothing of the caller's.
        wrap: puts around it what writes to inputs after it has run.
        captured: the graph that the program was compiled from.
        name: of the graph, for warnings.

    Random operators draw anew then: after an error the generator is not where eager leaves it.
    """
    direct = wrap(program)
    if direct is program:
        return _eager_on(Exception, program, captured, name)
    return _eager_on(_ProgramError, wrap(_watched(program)), captured, name)


def _watched(program: Runner) -> Runner:
    """The program with its errors told apart from those of what is around it."""

    def watched(*inputs: Any) -> Any:
        try:
            return program(*inputs)
        except Exception as error:
            raise _ProgramError from error

    return watched


def _eager_on(kind: type[Exception], run: Runner, captured: fx.GraphModule, name: str) -> Runner:
    eager = at_user_lines(captured)

    @functools.wraps(run, assigned=())
    def call(*inputs: Any) -> Any:
        try:
            return run(*inputs)
        except kind as error:
            failure = str(error.__cause__ if kind is _ProgramError else error)
        result = eager(*inputs)
        get_logger("compile").warning(
            "the compiled program of %s failed, which is a bug, and the call ran eagerly: %s",
            name,
            failure,
        )
        return result

    def unchanged_on_error(*inputs: Any) -> Any:
        try:
            return run(*inputs)
        except kind as error:
            raise RuntimeError(f"the compiled program of {name} failed") from error

    setattr(call, "unchanged_on_error", unchanged_on_error)  # noqa: B010  # for mypy
    return call


def at_user_lines(captured: fx.GraphModule) -> Runner:
    """The captured graph as it is, with the user's line in the tracebacks of its errors."""
    forward: Runner = captured.forward

    def eager(*inputs: Any) -> Any:
        try:
            return forward(*inputs)
        except Exception as error:
            error.__traceback__ = _with_user_line(error.__traceback__, captured)
            raise

    setattr(eager, "runs_in_order", True)  # noqa: B010  # for mypy
    return eager


def _with_user_line(
    traceback: types.TracebackType | None, captured: fx.GraphModule
) -> types.TracebackType | None:
    """A traceback with the user's line in the place of the generated code's."""
    if traceback is None:
        return None
    below = _with_user_line(traceback.tb_next, captured)
    code = traceback.tb_frame.f_code
    if code is getattr(type(captured).forward, "__code__", None):
        node = _node_at(linecache.getline(code.co_filename, traceback.tb_lineno), captured)
        frame = None if node is None else _user_frame(node)
        if frame is not None:
            return types.TracebackType(below, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return types.TracebackType(below, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def _node_at(text: str, captured: fx.GraphModule) -> fx.Node | None:
    """The node of a line of generated code: the first that the line assigns, `add = x + 1` or
    `x[0] = y;  setitem = x`."""
    nodes = {node.name: node for node in captured.graph.nodes if node.op != "placeholder"}
    names = re.findall(r"(?:^|;)\s*(\w+) = ", text)
    return next((nodes[name] for name in names if name in nodes), None)


def _user_frame(node: fx.Node) -> types.TracebackType | None:
    """A traceback entry for the user's line of a node, made by raising at such a line."""
    found = USER_LINE.match(str(node.meta.get("source_line", "")))
    if found is None:
        return None
    file = str(node.meta.get("source_file") or found["file"])
    try:
        exec(_raising_at(file, int(found["number"]), found["function"]), {})
    except LookupError as error:
        return None if error.__traceback__ is None else error.__traceback__.tb_next
    return None


def _raising_at(file: str, number: int, function: str) -> types.CodeType:
    """Code that raises at a line of a file; it spans the line, so that nothing is underlined."""
    text = linecache.getline(file, number).rstrip()
    tree = ast.parse("raise LookupError")
    for part in ast.walk(tree):
        if isinstance(part, (ast.stmt, ast.expr)):
            part.lineno = part.end_lineno = number
            part.col_offset = len(text) - len(text.lstrip())
            part.end_col_offset = len(text.encode())
    return compile(tree, file, "exec").replace(co_name=function, co_qualname=function)
