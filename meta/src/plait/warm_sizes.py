"""Programs of graphs with symbolic sizes, or that take floats, as data: for which inputs they are
right, and what they are given of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plait.record import Runner
from plait_bytecode_tracer.stored import DiffersError, NotStoredError

if TYPE_CHECKING:
    from plait.shapes import Served

_NAME = re.compile(r"n\d+")
_NODES = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.BinOp),
    *(ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Tuple, ast.Load),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
"""What conditions on sizes consist of, beside numbers and sizes."""


def write_served(served: Served) -> list[Any]:
    """For which inputs a program is right, as JSON. Raises NotStoredError where no text says it."""
    from plait_fx_passes import GraphTextError
    from plait_fx_passes.tools import write_graph

    text = None
    try:
        if served.split is not None:
            text = write_graph(served.split.arithmetic)
    except GraphTextError as error:
        raise NotStoredError(f"arithmetic that cannot be written: {error}") from error
    if served.conditions is not None and not _is_plain(served.conditions):
        raise NotStoredError("conditions on sizes that are more than arithmetic")
    return [list(served.tensors), list(served.floats), text, served.conditions]


def serving(
    run: Runner, tensors: list[int], floats: list[int], text: str | None, conditions: str | None
) -> Runner:
    """A program that is given its part of the inputs, if these are such as it is right for.

    Else it raises DiffersError, before anything has happened. So does this, for other data.
    """
    compute: Callable[..., Sequence[float]] | None = None
    if text is not None:
        from plait_fx_passes.tools import read_graph

        compute = read_graph(text).forward
    fits = None if conditions is None else _conditions(conditions)

    def call(*inputs: Any) -> Any:
        if fits is not None and not fits(inputs):
            raise DiffersError("the sizes are others than those that the program is for")
        given = [inputs[n] for n in tensors]
        if compute is not None:
            given += compute(*[inputs[n] for n in floats])
        return run(*given)

    return call


def _conditions(text: str) -> Callable[[Sequence[Any]], bool]:
    if not _is_plain(text):
        raise DiffersError("conditions on sizes that are none")
    namespace: dict[str, Any] = {}
    exec(compile(text, "<plait conditions on sizes>", "exec"), namespace)
    fits: Callable[[Sequence[Any]], bool] = namespace["fits"]
    return fits


def _is_plain(text: str) -> bool:
    """Whether a text is a function `fits` that reads sizes and strides, and compares them."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    match body:
        case [ast.FunctionDef(name="fits", decorator_list=[], body=[*reads, last]) as function]:
            taken = [each.arg for each in function.args.args]
            is_simple = taken == ["inputs"] and ast.unparse(function.args) == "inputs"
            return is_simple and all(map(_is_read, reads)) and _is_result(last)
    return False


def _is_read(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return _NAME.fullmatch(name) is not None and _is_size(value)
    return False


def _is_result(statement: ast.stmt) -> bool:
    match statement:
        case ast.Return(value=ast.Call(func=ast.Name(id="bool"), args=[condition], keywords=[])):
            return _is_condition(condition)
    return False


def _is_size(value: ast.AST) -> bool:
    """Whether it is `inputs[0].shape[1]`, `inputs[0].stride(1)`, or all sizes or strides."""
    match value:
        case ast.Subscript(value=ast.Attribute() as sizes, slice=ast.Constant(value=int())):
            return _is_size(sizes)
        case ast.Attribute(value=tensor, attr="shape"):
            return _is_input(tensor)
        case ast.Call(func=ast.Attribute(value=tensor, attr="stride"), args=args, keywords=[]):
            is_number = all(type(getattr(each, "value", None)) is int for each in args)
            return is_number and len(args) < 2 and _is_input(tensor)
    return False


def _is_input(value: ast.AST) -> bool:
    match value:
        case ast.Subscript(value=ast.Name(id="inputs"), slice=ast.Constant(value=int())):
            return True
    return False


def _is_condition(value: ast.AST) -> bool:
    if _is_size(value):
        return True
    match value:
        case ast.Name(id=name):
            return _NAME.fullmatch(name) is not None
        case ast.Constant(value=int()):
            return True
    return isinstance(value, _NODES) and all(map(_is_condition, ast.iter_child_nodes(value)))
