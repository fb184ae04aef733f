"""Operators that a class calls by name, as `super().__setitem__`, on the container it inherits."""

from __future__ import annotations

from collections.abc import Callable

from plait_bytecode_tracer.frames.frame import Frame, constant
from plait_bytecode_tracer.objects.binary import container_operator
from plait_bytecode_tracer.objects.comparison import COMPARISONS, compare_containers
from plait_bytecode_tracer.objects.containers import contains, delete_item, get_item, set_item
from plait_bytecode_tracer.objects.iteration import iterate
from plait_bytecode_tracer.objects.representation import represent
from plait_bytecode_tracer.rules.objects import len_ as length
from plait_bytecode_tracer.values.variables import Variable


def _set_special(frame: Frame, owner: Variable, key: Variable, value: Variable) -> Variable:
    set_item(frame, owner, key, value)
    return constant(None)


def _delete_special(frame: Frame, owner: Variable, key: Variable) -> Variable:
    delete_item(frame, owner, key)
    return constant(None)


def _reversed(frame: Frame, owner: Variable) -> Variable:
    return frame.call(constant(reversed), [owner], {})


def _comparison(name: str) -> Callable[..., Variable]:
    def method(frame: Frame, owner: Variable, other: Variable) -> Variable:
        return compare_containers(frame, owner, name, other)

    return method


def _operator(name: str) -> Callable[..., Variable]:
    def method(frame: Frame, owner: Variable, other: Variable) -> Variable:
        return container_operator(frame, owner, name, other)

    return method


_OPERATORS = (
    *("add", "mul", "rmul", "iadd", "imul", "or", "ror", "ior", "and", "rand", "iand"),
    *("sub", "rsub", "isub", "xor", "rxor", "ixor"),
)
SPECIAL_METHODS: dict[str, Callable[..., Variable]] = {
    "__getitem__": get_item,
    "__setitem__": _set_special,
    "__delitem__": _delete_special,
    "__len__": lambda frame, owner: length(frame, owner),
    "__contains__": lambda frame, owner, item: constant(contains(frame, owner, item)),
    "__iter__": iterate,
    "__reversed__": _reversed,
    "__repr__": lambda frame, owner: constant(represent(frame, owner)),
    **{name: _comparison(name) for name, _ in COMPARISONS.values()},
    **{f"__{name}__": _operator(f"__{name}__") for name in _OPERATORS},
}
"""Operators that a class calls by name, as `super().__setitem__`, on what it inherits."""
