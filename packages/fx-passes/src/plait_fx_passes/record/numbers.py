"""Numbers that a program is given anew at each call, as symbols in a graph.

A number is an input, or the element of a tensor that is given where an operator takes a number,
as a learning rate in ``addcdiv_(a, b, value=rate)``.

torch hands a :class:`torch.SymFloat` through to operators as it is, wherever they take a number.
What stands behind one here is a node of the graph. Sums and products of such numbers are nodes
too; whatever needs the value itself, to decide or to compute, refuses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from plait_fx_passes.errors import AtenTraceError

ARITHMETIC: frozenset[Callable[..., object]] = frozenset(
    (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, max, min)
)
"""What a graph computes with numbers, as Python does with floats: ``max`` and ``min`` of two give
the first one unless the second is greater, or less."""


class NumberReadError(AtenTraceError):
    """What the program does depends on a number that is to be given at each call."""


class NumberNode:
    """The :class:`torch.SymNode` of a number: a node of a graph, or a constant."""

    def __init__(self, value: fx.Node | float) -> None:
        self.value = value

    @classmethod
    def of(cls, node: fx.Node) -> torch.SymFloat:
        """The number that a node of a graph is; becomes its ``meta["val"]``."""
        make: Callable[[NumberNode], torch.SymFloat] = torch.SymFloat
        node.meta["val"] = make(cls(node))
        return cast(torch.SymFloat, node.meta["val"])

    def applied(self, function: Callable[..., object], *others: NumberNode) -> NumberNode:
        operands: list[Argument] = [each.value for each in (self, *others)]
        last = next(each for each in operands if isinstance(each, fx.Node))
        made = last.graph.call_function(function, tuple(operands))
        made.meta = {**last.meta}
        return cast(NumberNode, NumberNode.of(made).node)

    def add(self, other: NumberNode) -> NumberNode:
        return self.applied(operator.add, other)

    def sub(self, other: NumberNode) -> NumberNode:
        return self.applied(operator.sub, other)

    def mul(self, other: NumberNode) -> NumberNode:
        return self.applied(operator.mul, other)

    def float_truediv(self, other: NumberNode) -> NumberNode:
        return self.applied(operator.truediv, other)

    def neg(self) -> NumberNode:
        return self.applied(operator.neg)

    def wrap_float(self, number: float) -> NumberNode:
        return NumberNode(number)

    wrap_int = wrap_float

    def sym_float(self) -> NumberNode:
        return self

    clone = sym_float

    # What torch asks of every number.

    def is_float(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    is_bool = is_nested_int = is_constant = has_hint = is_int

    def maybe_as_float(self) -> None:
        return None

    maybe_as_int = maybe_as_bool = maybe_as_float

    def __str__(self) -> str:
        return str(self.value)

    _graph_repr = str = __str__

    def guard_float(self, file: object, line: object) -> NoReturn:
        raise NumberReadError(
            f"the value of {self} is needed", hint="compile for each value, as for sizes"
        )

    def _decides(self, *others: NumberNode) -> NoReturn:
        self.guard_float(None, None)

    # `max` and `min` of Python's compare: :func:`computed` takes them before they do.
    eq = ne = lt = le = gt = ge = _decides
    abs = pow = float_pow = floordiv = mod = round = ceil = floor = trunc = sym_max = sym_min = (
        _decides
    )


def is_number(value: object) -> bool:
    """Whether a fake value is that of a number given at each call."""
    return isinstance(value, torch.SymFloat) and isinstance(value.node, NumberNode)


def computed(function: object, operands: Sequence[object]) -> torch.SymFloat | None:
    """What a function gives of two numbers, where it would compare them; None of all else."""
    if function not in (max, min) or len(operands) != 2 or not any(map(is_number, operands)):
        return None
    if not all(is_number(each) or isinstance(each, int | float) for each in operands):
        return None
    one, two = (each.node if is_number(each) else NumberNode(each) for each in operands)  # type: ignore[attr-defined,arg-type]  # numbers, by now
    make: Callable[[NumberNode], torch.SymFloat] = torch.SymFloat
    return make(one.applied(function, two))


def as_tensor(
    function: object, operands: Sequence[object], options: Mapping[str, Any]
) -> torch.Tensor | None:
    """The tensor that ``torch.tensor`` makes of a number, whose value it would read; None of all
    else."""
    is_made = function in (torch.tensor, torch.as_tensor) and options.keys() <= {"dtype", "device"}
    if not is_made or len(operands) != 1 or not is_number(operands[0]):
        return None
    dtype = options.get("dtype") or torch.get_default_dtype()
    number = cast(float, operands[0])
    return torch.scalar_tensor(number, dtype=dtype, device=options.get("device"))


def node_of(number: torch.SymFloat) -> fx.Node | float:
    """The node that a number is, or a constant."""
    found = number.node
    assert isinstance(found, NumberNode)
    return found.value


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether the element of a tensor can be a number in a graph."""
    return tensor.is_floating_point() and tensor.device.type == "cpu"


def reads_numbers(nodes: Iterable[fx.Node]) -> bool:
    """Whether some nodes read numbers from tensors."""
    return any(isinstance(n.target, OpOverload) and is_number(n.meta["val"]) for n in nodes)


def holds_numbers(examples: Sequence[object]) -> bool:
    """Whether some of a program's examples are numbers."""
    return any(type(example) is float for example in examples)
