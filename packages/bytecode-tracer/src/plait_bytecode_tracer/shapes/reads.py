"""Numbers that are read from small tensors of the call, as they are before the graph runs.

An optimizer counts its steps in a tensor of one element: it adds one to it, and computes with
the number that it then holds. Where all that the trace has done to such a tensor is known,
the number is computed before each call, from a copy of the tensor. So it can be guarded.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.frames.frame import constant
from plait_bytecode_tracer.graph.memory import Touch, storage_of
from plait_bytecode_tracer.outside.generators import is_awaited
from plait_bytecode_tracer.shapes.expressions import Computed, Leaf, leaves, render, shown
from plait_bytecode_tracer.shapes.marks import Mark
from plait_bytecode_tracer.shapes.readers import METHODS, Change, Place, count, read
from plait_bytecode_tracer.state import TraceState
from plait_bytecode_tracer.tensors.values import constant_tensor
from plait_bytecode_tracer.values.sources import Source
from plait_bytecode_tracer.values.variables import SymbolVariable, TensorVariable, Variable
from plait_utils import dataclass

_CHANGES: dict[Any, str] = {
    **{name: name for name in METHODS},
    **{getattr(torch.Tensor, name): name for name in METHODS},
    **{getattr(operator, f"i{n}"): f"{n}_" for n in ("add", "sub", "mul")},
    operator.itruediv: "div_",
}
"""What changes the tensor that is its first argument, by the method that does the same."""
_OF_LISTS: dict[Any, str] = {
    getattr(torch, f"_foreach_{name}"): name for name in ("add_", "sub_", "mul_", "div_")
}
"""What does so for each tensor of a list."""
_MOST_ADDED = 1 << 10
_EXACT = {torch.float32: float(1 << 23), torch.float64: float(1 << 52)}
"""Whole numbers below these stay exact in an element type when a few are added."""
_SIGNS = {"add_": "+", "sub_": "-", "mul_": "*", "div_": "/"}


@dataclass(slots=True)
class Past:
    """What a tensor began as, and all that the trace has done to its memory."""

    base: fx.Node
    changes: list[Change] = field(default_factory=list)
    numbers: list[SymbolVariable] = field(default_factory=list)
    """What the changes took."""
    counted: int = 0
    """How many of the changes a tensor's version counts."""

    def shown(self, arg: Any) -> str:
        """An argument of a change for people."""
        if isinstance(arg, Place):
            return shown(self.numbers[arg.position].expression)
        return str(arg)


def number_before(state: TraceState, tensor: TensorVariable) -> Variable | None:
    """What `tensor.item()` gives where that is known before the graph runs; None elsewhere."""
    if state.scope.parent is not None:
        return None
    past = _past_of(state, tensor)
    if past is None:
        return None
    changes = tuple(past.changes)
    if past.base.op != "placeholder":
        value = None if past.numbers else constant_tensor(state, past.base, as_made=True)
        return None if value is None else constant(read(changes, value))
    graph_input = state.memory.input_of(state.inputs, past.base)
    if is_awaited(graph_input.source) or state.memory.is_shared(state.inputs, graph_input.real):
        return None
    if tensor.fake.dtype is torch.bool and not changes:
        return None
    symbols = state.need_symbols()
    source = graph_input.source
    reader = _reader(changes, tensor.fake.dtype)
    value = reader(graph_input.real, *(number.hint for number in past.numbers))
    if type(value) not in (int, float):
        return None
    numbers = [_code(state, number) for number in past.numbers]
    key = f"{source.code} {len(changes)}"  # what has been done to a tensor only grows
    name = state.constants.name(symbols.readers.setdefault(key, reader))
    code = f"{name}({', '.join([source.code, *numbers])})"
    return symbols.number(value, Source(code, _text(source.text, past), source), Mark(True))


def _reader(changes: tuple[Change, ...], dtype: torch.dtype) -> Callable[..., Any]:
    """What reads the number that a tensor of one element will hold."""
    added = [_added(change) for change in changes]
    limit = _EXACT.get(dtype)
    if not changes or limit is None or None in added:
        return functools.partial(read, changes)
    return functools.partial(count, changes, float(sum(filter(None, added))), limit)


def _added(change: Change) -> int | None:
    """The whole number that a change adds, if it does no more than that."""
    given = change.args[0] if change.method == "add_" and len(change.args) == 1 else None
    if isinstance(given, torch.Tensor) and given.dim() == 0 and given.device.type == "cpu":
        given = given.item()
    alpha = change.kwargs.get("alpha", 1)
    if type(given) not in (int, float) or set(change.kwargs) - {"alpha"}:
        return None
    amount = given * alpha
    return int(amount) if abs(amount) < _MOST_ADDED and amount == int(amount) else None


def _code(state: TraceState, number: SymbolVariable) -> str:
    """A number as Python over the call's arguments."""

    def leaf(each: Leaf | Computed) -> str:
        assert isinstance(each, Leaf)
        return each.code(each.source.code)

    return render(number.expression, leaf, state.constants.name)


def _text(text: str, past: Past) -> str:
    for change in past.changes:
        given = [past.shown(arg) for arg in change.args]
        sign = _SIGNS.get(change.method)
        if sign is not None and len(given) == 1 and not change.kwargs:
            text = f"({text} {sign} {given[0]})"
        else:
            given += [f"{name}={value}" for name, value in change.kwargs.items()]
            text = f"{text}.{change.method}({', '.join(given)})"
    return f"{text}.item()"


def _past_of(state: TraceState, tensor: TensorVariable) -> Past | None:
    """How a tensor of one element has come to hold what it does; None where that is not known."""
    fake = tensor.fake
    if fake.dim() or fake.device.type != "cpu" or fake.is_complex() or fake.requires_grad:
        return None
    past: Past | None = None
    for touch in state.memory.touching(state.graph, storage_of(fake)):
        if touch.takes and past is not None:
            if touch.gives and not _is_at(touch.node, past.base):
                return None  # as a view of another dtype
            if not _follow(state, past, touch):
                return None
        elif touch.gives and touch.node.target is not operator.getitem:
            if past is not None:
                return None  # two inputs in one memory
            past = Past(touch.node)
    if past is None or past.base.meta["val"].dim():
        return None
    begun = state.versions_before.get(past.base, state.versions.get(past.base, -1))
    if begun < 0 or past.base.meta["val"]._version != begun + past.counted:
        return None  # something else has changed it
    return past


def _is_at(node: fx.Node, base: fx.Node) -> bool:
    """Whether a tensor begins with the element of another one in its memory."""
    view, value = node.meta["val"], base.meta["val"]
    return view.dtype is value.dtype and bool(view.storage_offset() == value.storage_offset())


def _follow(state: TraceState, past: Past, touch: Touch) -> bool:
    """Take in what a node does to a tensor; whether that is known."""
    node = touch.node
    if "is_switched" in node.meta:
        return False  # before the call, modes are others
    target = node.target
    if "_amp_" in getattr(target, "__name__", ""):
        return False  # operators of gradient scaling change what they take
    if target in _OF_LISTS:
        if not isinstance(node.args[0], list | tuple):
            return False
        if len(touch.places) != 1:
            return not touch.places
        (place,) = touch.places
        given = [each[place] if isinstance(each, list | tuple) else each for each in node.args[1:]]
        return _add(state, past, _OF_LISTS[target], given, node.kwargs)
    if target in _CHANGES and touch.is_first:
        past.counted += 1
        return _add(state, past, _CHANGES[target], node.args[1:], node.kwargs)
    return True


def _add(
    state: TraceState, past: Past, method: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    """A change by constants and numbers; False for one by what only the run tells."""
    given: list[Any] = []
    for arg in args:
        value: Any = arg
        if isinstance(arg, fx.Node):
            value = _number_of(state, past, arg) or constant_tensor(state, arg)
        if not isinstance(value, int | float | torch.Tensor | Place):
            return False
        given.append(value)
    if not all(isinstance(value, int | float) for value in kwargs.values()):
        return False
    past.changes.append(Change(method, tuple(given), dict(kwargs)))
    return True


def _number_of(state: TraceState, past: Past, node: fx.Node) -> Place | None:
    """A number of the graph that is known before it runs."""
    number = None if state.symbols is None else state.symbols.of_nodes.get(node)
    if number is None or any(isinstance(leaf, Computed) for leaf in leaves(number.expression)):
        return None
    past.numbers.append(number)
    return Place(len(past.numbers) - 1)
