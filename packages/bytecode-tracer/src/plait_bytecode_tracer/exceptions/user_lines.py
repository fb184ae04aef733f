"""The user's lines in tracebacks of graphs that run as they were captured."""

from __future__ import annotations

import ast
import dis
import linecache
import re
import types

from torch import fx

from plait_bytecode_tracer.exceptions.tracebacks import make_traceback

USER_LINE = re.compile(r"^(?P<file>.+?):(?P<number>\d+) in (?P<function>[^:]+): (?P<text>.*)$")
"""How the tracer writes a user's line."""
_ORIGINAL = "_traceback_of_graph"


def node_at(text: str, module: fx.GraphModule) -> fx.Node | None:
    """The node of a line of generated code: the first that the line assigns, `add = x + 1` or
    `x[0] = y;  setitem = x`."""
    nodes = {node.name: node for node in module.graph.nodes if node.op != "placeholder"}
    names = re.findall(r"(?:^|;)\s*(\w+) = ", text)
    return next((nodes[name] for name in names if name in nodes), None)


def show_user_lines(error: BaseException, module: fx.GraphModule) -> None:
    """Put the user's lines into the traceback of an error that the code of a module raised."""
    vars(error)[_ORIGINAL] = error.__traceback__
    error.__traceback__ = with_user_lines(error.__traceback__, module)


def original_traceback(error: BaseException) -> types.TracebackType | None:
    """The traceback of an error as it was before `show_user_lines`, which forgets it."""
    found: types.TracebackType | None = vars(error).pop(_ORIGINAL, error.__traceback__)
    return found


def with_user_lines(
    traceback: types.TracebackType | None, module: fx.GraphModule
) -> types.TracebackType | None:
    """A traceback with the user's lines in the place of the code of a module and its children."""
    inner = [each for each in module.modules() if isinstance(each, fx.GraphModule)]
    codes = {getattr(type(each).forward, "__code__", None): each for each in inner}
    return _with_user_lines(traceback, codes)


def _with_user_lines(
    traceback: types.TracebackType | None, modules: dict[types.CodeType | None, fx.GraphModule]
) -> types.TracebackType | None:
    if traceback is None:
        return None
    below = _with_user_lines(traceback.tb_next, modules)
    code = traceback.tb_frame.f_code
    module = modules.get(code)
    if module is not None:
        node = node_at(linecache.getline(code.co_filename, traceback.tb_lineno), module)
        entry = None if node is None else _user_entry(node, below)
        if entry is not None:
            return entry
    return types.TracebackType(below, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)


def _user_entry(node: fx.Node, below: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback entry for the user's line of a node."""
    found = USER_LINE.match(str(node.meta.get("source_line", "")))
    if found is None:
        return None
    file = str(node.meta.get("source_file") or found["file"])
    number = int(found["number"])
    code = _raising_at(file, number, found["function"])
    raising = next(i for i in dis.get_instructions(code) if i.opname == "RAISE_VARARGS")
    return make_traceback(code, {}, (raising.offset, number), below)


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
