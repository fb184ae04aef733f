"""Numbers that differ from call to call, as exact Python over what is read from the call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from torch import fx

from plait_bytecode_tracer.values.sources import Source
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Leaf:
    """A number of the call: an int or float itself, or a size or stride of a tensor."""

    source: Source
    read: str = ""
    """"" for the value itself, "size" or "stride" for a tensor's."""
    dim: int = 0

    @property
    def place(self) -> int:
        """Its position among the sizes of a tensor; the strides follow from them."""
        return self.dim if self.read == "size" else 0

    def code(self, value: str) -> str:
        """How it is read from the value of the source."""
        return f"{value}.{self.read}({self.dim})" if self.read else value


@dataclass(frozen=True, slots=True)
class Computed:
    """A number that the graph's run gives: it depends on data."""

    node: fx.Node


@dataclass(frozen=True, slots=True)
class Applied:
    """A pure function of numbers. `template` is Python, with `{0}`, `{1}` for the arguments."""

    template: str
    arguments: tuple[Expression, ...]
    function: Callable[..., Any] | None = None
    """What a node of the graph calls; None where the number has a node of its own."""
    callee: object = None
    """The object that `{f}` in the template names."""
    shown: str = ""
    """The name of the callee, for people."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or text of the program."""

    value: object
    """An int or bool stands as it is; all else by a name."""


Expression: TypeAlias = Leaf | Computed | Applied | Constant

_INFIX: dict[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "and_": "&",
    "or_": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
    "lt": "<",
    "le": "<=",
    "eq": "==",
    "ne": "!=",
    "gt": ">",
    "ge": ">=",
}
_PREFIX: dict[str, str] = {"neg": "-", "pos": "+", "invert": "~", "not_": "not "}
_TEMPLATES: dict[Any, str] = {
    **{getattr(operator, name): f"({{0}} {sign} {{1}})" for name, sign in _INFIX.items()},
    **{getattr(operator, name): f"({sign}{{0}})" for name, sign in _PREFIX.items()},
}
OPPOSITE: dict[str, str] = {
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
    "==": "!=",
    "!=": "==",
}
"""Comparisons of ints and those that hold where they do not."""


def applied(function: Callable[..., Any], arguments: tuple[Expression, ...]) -> Applied:
    """A function of numbers."""
    template = _TEMPLATES.get(function)
    if template is not None:
        return Applied(template, arguments, function)
    places = ", ".join(f"{{{n}}}" for n in range(len(arguments)))
    name = getattr(function, "__qualname__", "f")
    return Applied(f"{{f}}({places})", arguments, function, function, str(name))


_EVERYWHERE = frozenset(
    {*(getattr(operator, name) for name in (*_INFIX, *_PREFIX) if name != "pow"), float, int}
)
"""What graphs compute of numbers, whatever these are."""


def is_beyond(expression: Expression) -> bool:
    """Whether something is computed that Python has functions for, and programs have not."""
    if not isinstance(expression, Applied):
        return False
    is_known = expression.function is None or expression.function in _EVERYWHERE
    return not is_known or any(map(is_beyond, expression.arguments))


def or_nothing(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that gives NaN where it fails: for numbers that the guards, which come later, are
    not met by."""

    def compute(*numbers: Any) -> Any:
        try:
            return function(*numbers)
        except (ArithmeticError, ValueError):
            return math.nan

    return compute


def key_of(expression: Expression) -> object:
    """What only equal expressions have in common: of numbers also the class."""
    match expression:
        case Applied(template, arguments, function, callee):
            return template, function, callee, tuple(map(key_of, arguments))
        case Constant(value):
            return type(value), repr(value)
    return expression


def leaves(expression: Expression) -> Iterator[Leaf | Computed]:
    """What an expression is computed from, in order; some may come twice."""
    match expression:
        case Applied():
            for argument in expression.arguments:
                yield from leaves(argument)
        case Leaf() | Computed():
            yield expression


def render(
    expression: Expression,
    leaf: Callable[[Leaf | Computed], str],
    name: Callable[[object], str],
) -> str:
    """The expression as Python; `leaf` and `name` say how leaves and objects are named."""
    match expression:
        case Applied():
            given = [render(argument, leaf, name) for argument in expression.arguments]
            callee = "" if expression.callee is None else name(expression.callee)
            return expression.template.format(*given, f=callee)
        case Constant(value):
            if not isinstance(value, int):
                return name(value)
            return f"({value!r})" if value < 0 else repr(value)
    return leaf(expression)


def shown(expression: Expression) -> str:
    """The expression for people."""
    match expression:
        case Applied():
            given = [shown(argument) for argument in expression.arguments]
            return expression.template.format(*given, f=expression.shown)
        case Constant(value):
            return repr(value)
        case Leaf(source):
            return expression.code(source.text)
        case Computed(node):
            if node.target == "size":
                return f"{node.args[0]}.size({node.args[1]})"
            return f"{node.args[0]}.item()" if node.target == "item" else str(node)


def bare(text: str) -> str:
    """A text without parentheses around the whole."""
    depth = 0
    if not text.startswith("("):
        return text
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text
