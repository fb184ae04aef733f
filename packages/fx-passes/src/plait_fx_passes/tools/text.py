"""Graphs as Python text that reads back without being run.

Each call is a line that Python can run, ``add = torch.ops.aten.add.Tensor(x, 1)``. Reading parses
these lines and looks each name up among what a graph may call: operators that are registered,
``operator``'s functions, functions of torch that make tensors of numbers or switch gradients and
autocast, functions of torch that take tensors (those that ``torch.overrides`` lists), and tensors'
own methods. Nothing is evaluated or imported, so text from elsewhere can say nothing but calls of
these, and nothing else is written.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.errors import GraphTextError

_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)
_NUMBERS = {"inf": math.inf, "nan": math.nan}
_MAKES_FUNCTIONS = ("attrgetter", "itemgetter", "methodcaller", "call")
"""With these, text could reach what it cannot name."""
_OPERATORS = {
    getattr(operator, name): f"operator.{name}"
    for name in operator.__all__
    if name not in _MAKES_FUNCTIONS
}
_FACTORIES = (
    *("arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices"),
    "zeros",
)
"""Functions of torch that make tensors of numbers."""
_MODES = {
    torch._C._set_grad_enabled: "torch._C._set_grad_enabled",
    **{
        getattr(torch, name): f"torch.{name}"
        for name in (
            *("set_autocast_enabled", "set_autocast_dtype", "set_autocast_cache_enabled"),
            *("clear_autocast_cache", "autocast_increment_nesting", "autocast_decrement_nesting"),
        )
    },
}
"""Functions that switch gradients and autocast on and off, as graphs do that are captured."""
_TOUCHES_FILES = ("from_file", "_from_file")


def write_graph(graph: fx.Graph, name: str = "program") -> str:
    """The graph as a Python function; constants are read from a dictionary ``constants``.

    Args:
        graph: placeholders, calls of functions and methods, attributes that are tensors.
        name: of the function.

    Raises:
        GraphTextError: the graph calls a module, or something that the text cannot name.
    """
    arguments = [node.name for node in graph.nodes if node.op == "placeholder"]
    lines = [f"def {name}({', '.join(arguments)}):"]
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"    return {write_value(node.args[0])}")
        elif node.op != "placeholder":
            line = node.meta.get("source_line")
            comment = "" if line is None else f"  # {line}"
            lines.append(f"    {node.name} = {_write_call(node)}{comment}")
    return "\n".join(lines) + "\n"


def _write_call(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"constants[{str(node.target)!r}]"
    operands = [write_value(each) for each in node.args]
    if node.op == "call_method":
        _require_method(node.target)
        function, operands = f"{operands[0]}.{node.target}", operands[1:]
    elif node.op == "call_function":
        function = name_of(node.target)
    else:
        raise GraphTextError(f"%{node.name} is a {node.op}, which has no text")
    operands += [f"{name}={write_value(value)}" for name, value in node.kwargs.items()]
    return f"{function}({', '.join(operands)})"


def name_of(function: object) -> str:
    """The dotted name of what a graph calls. Raises GraphTextError where there is none."""
    if isinstance(function, OpOverload):
        return f"torch.ops.{function.namespace}.{function._opname}.{function._overloadname}"
    if not callable(function):
        raise GraphTextError(f"{function!r} cannot be called")
    found = _OPERATORS.get(function) or _torch_names().get(function)
    if found is None:
        raise GraphTextError(
            f"{function!r} is no operator and no function of torch that takes tensors"
        )
    return found


def write_value(value: object) -> str:
    """A node's argument as Python text."""
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(write_value, value))
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {write_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join(map(write_value, (value.start, value.stop, value.step)))})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    plain = value is None or value is ... or isinstance(value, (bool, int, float, str))
    if plain or isinstance(value, _TORCH_VALUES):
        return "..." if value is ... else repr(value)
    raise GraphTextError(f"{value!r} has no text")


def read_graph(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> fx.GraphModule:
    """The graph that :func:`write_graph` wrote.

    Args:
        text: one function; what stands around it is ignored.
        constants: the tensors that it reads as ``constants["name"]``.

    Raises:
        GraphTextError: a line is no call of something that graphs may call.
    """
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise GraphTextError(f"this is no Python: {error}") from error
    functions = [each for each in body if isinstance(each, ast.FunctionDef)]
    if len(functions) != 1:
        raise GraphTextError(f"there is one function to read, not {len(functions)}")
    return _Reader(constants or {}).read(functions[0])


def read_value(text: str) -> Any:
    """The value that :func:`write_value` wrote. Raises GraphTextError for all else."""
    try:
        return _Reader({}).value(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise GraphTextError(f"this is no value: {text!r}") from error


class _Reader:
    def __init__(self, constants: Mapping[str, torch.Tensor]) -> None:
        self._graph = fx.Graph()
        self._nodes: dict[str, fx.Node] = {}
        self._root = torch.nn.Module()
        self._constants = constants

    def read(self, function: ast.FunctionDef) -> fx.GraphModule:
        for argument in function.args.args:
            self._add(argument.arg, self._graph.placeholder(argument.arg))
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                self._graph.output(self.value(statement.value))
                return fx.GraphModule(self._root, self._graph, function.name)
            self._statement(statement)
        raise GraphTextError(f"{function.name} returns nothing")

    def _add(self, name: str, node: fx.Node) -> None:
        node.name = name
        self._nodes[name] = node

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                self._add(name, self._constant(value))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                self._add(name, self._call(call))
            case _:
                raise _unreadable(statement)

    def _constant(self, value: ast.Subscript) -> fx.Node:
        match value:
            case ast.Subscript(value=ast.Name(id="constants"), slice=ast.Constant(value=str(key))):
                if key not in self._constants:
                    raise GraphTextError(f"there is no constant {key!r}")
                name = key.replace(".", "_")
                setattr(self._root, name, self._constants[key])
                return self._graph.get_attr(name)
        raise _unreadable(value)

    def _call(self, call: ast.Call) -> fx.Node:
        args = tuple(self.value(each) for each in call.args)
        kwargs = {str(each.arg): self.value(each.value) for each in call.keywords}
        match call.func:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if name in self._nodes:
                _require_method(method)
                return self._graph.call_method(method, (self._nodes[name], *args), kwargs)
        return self._graph.call_function(function_named(_dotted(call.func)), args, kwargs)

    def value(self, value: ast.expr) -> Any:
        match value:
            case ast.Constant(value=found):
                return found
            case ast.Name(id=name) if name in self._nodes:
                return self._nodes[name]
            case ast.Name(id=name) if name in _NUMBERS:
                return _NUMBERS[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._number(operand)
            case ast.List(elts=elements):
                return [self.value(each) for each in elements]
            case ast.Tuple(elts=elements):
                return tuple(self.value(each) for each in elements)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {self.value(k): self.value(v) for k, v in pairs if k is not None}
            case ast.Call(func=ast.Name(id="slice"), args=args, keywords=[]):
                return slice(*(self.value(each) for each in args))
            case ast.Call(func=ast.Name(id="complex"), args=[real, imaginary], keywords=[]):
                return complex(self._number(real), self._number(imaginary))
            case ast.Call(func=ast.Attribute(), args=[ast.Constant(value=str(name))], keywords=[]):
                if _dotted(value.func) == "torch.device":
                    return torch.device(name)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                known = getattr(torch, name, None)
                if isinstance(known, _TORCH_VALUES):
                    return known
        raise _unreadable(value)

    def _number(self, value: ast.expr) -> float:
        found = self.value(value)
        if not isinstance(found, (int, float)):
            raise _unreadable(value)
        return found


def function_named(name: str) -> Callable[..., Any]:
    """What a graph may call by this name. Raises GraphTextError where there is none."""
    parts = name.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) == 5 and parts[3] not in _TOUCHES_FILES:
        packet = getattr(getattr(torch.ops, parts[2]), parts[3], None)
        found = getattr(packet, parts[4], None)
        if isinstance(found, OpOverload):
            return found
    elif parts[0] == "operator":
        for function, known in _OPERATORS.items():
            if known == name:
                return cast("Callable[..., Any]", function)
    else:
        by_name = _functions_by_name()
        if name in by_name:
            return by_name[name]
    raise GraphTextError(
        f"{name} is nothing that a graph may call",
        hint="import the library that registers the operator first",
    )


@cache
def _functions_by_name() -> dict[str, Callable[..., Any]]:
    return {name: function for function, name in _torch_names().items()}


@cache
def _torch_names() -> dict[Callable[..., Any], str]:
    """The functions of torch that take tensors, with the names they are found under."""
    from torch.overrides import get_overridable_functions

    found: dict[Callable[..., Any], str] = dict(_MODES)
    for space, functions in get_overridable_functions().items():
        prefix = getattr(space, "__name__", type(space).__name__)
        where = "torch.Tensor" if space is torch.Tensor else prefix
        for function in functions:
            name = getattr(function, "__name__", "")
            if getattr(space, name, None) is function:
                found.setdefault(function, f"{where}.{name}")
    for name in _FACTORIES:
        found.setdefault(getattr(torch, name), f"torch.{name}")
    # Of functions that dispatch on a flag, graphs call the one that it chooses.
    spaced = vars(torch.nn.functional)
    for name in [each for each in spaced if each.startswith("_") and each[1:] in spaced]:
        function = spaced[name]
        if getattr(function, "__module__", "") == "torch.nn.functional":
            found.setdefault(function, f"torch.nn.functional.{name}")
    return found


def _require_method(name: object) -> None:
    if name not in _methods():
        raise GraphTextError(f"tensors have no method {name!r} that graphs may call")


@cache
def _methods() -> frozenset[str]:
    from torch.overrides import get_overridable_functions

    names = {each.__name__ for each in get_overridable_functions()[torch.Tensor]}
    own = (*vars(torch.Tensor), *vars(torch._C.TensorBase))
    names |= {name for name in own if not name.startswith("_")}
    return frozenset(name for name in names if not name.startswith("__") or _is_operator(name))


def _is_operator(name: str) -> bool:
    """Whether a special method is an operator's, such as ``__add__`` and ``__radd__``."""
    plain = name.strip("_")
    known = {*operator.__all__, "and", "or"}
    return plain in known or (plain[0] in "ri" and plain[1:] in known)


def _dotted(value: ast.expr) -> str:
    match value:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{_dotted(inner)}.{name}"
    raise _unreadable(value)


def _unreadable(part: ast.AST) -> GraphTextError:
    return GraphTextError(
        f"line {getattr(part, 'lineno', '?')}: graphs have no {ast.unparse(part)!r}"
    )
