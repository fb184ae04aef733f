"""Finding a pattern's expression in a graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.errors import PatternError
from plait_fx_passes.passes.cleanup import value_key
from plait_fx_passes.patterns.expressions import (
    Call,
    Constant,
    Expression,
    Kind,
    Part,
    Wildcard,
    bind_arguments,
)
from plait_utils import dataclass

aten = torch.ops.aten

_COMMUTATIVE = frozenset(
    {
        aten.add.Tensor,
        aten.mul.Tensor,
        aten.maximum.default,
        aten.minimum.default,
        aten.logical_and.default,
        aten.logical_or.default,
    }
)


@dataclass(frozen=True, slots=True)
class Match:
    """Where a pattern was found.

    ``bindings`` maps the pattern's parameters to nodes, numbers or other arguments; ``nodes`` are
    the matched calls, the anchor (whose value the pattern computes) first.
    """

    anchor: fx.Node
    bindings: dict[str, object]
    nodes: tuple[fx.Node, ...]

    def node(self, name: str) -> fx.Node:
        """The node bound to a tensor parameter."""
        bound = self.bindings[name]
        assert isinstance(bound, fx.Node), name
        return bound

    def value(self, name: str) -> torch.Tensor:
        """The fake value of the node bound to a tensor parameter."""
        value = self.node(name).meta["val"]
        assert isinstance(value, torch.Tensor), name
        return value

    @property
    def result(self) -> torch.Tensor:
        """The fake value of the anchor."""
        value = self.anchor.meta["val"]
        assert isinstance(value, torch.Tensor)
        return value


@dataclass(frozen=True, slots=True)
class _State:
    """A partial match; immutable, so that alternatives can be tried."""

    bindings: tuple[tuple[str, object], ...] = ()
    nodes: tuple[fx.Node, ...] = ()

    def bind(self, name: str, value: object) -> _State | None:
        for known, bound in self.bindings:
            if known == name:
                return self if value_key(bound) == value_key(value) else None
        return _State((*self.bindings, (name, value)), self.nodes)

    def visit(self, node: fx.Node) -> _State:
        return self if node in self.nodes else _State(self.bindings, (*self.nodes, node))


def find_match(expression: Call | Part, node: fx.Node, *, shared: bool = False) -> Match | None:
    """Match ``expression`` with ``node`` as its anchor.

    Values inside the match must have no users outside it, unless ``shared``: the rewrite would
    otherwise compute them twice.
    """
    for state in _match(expression, node, _State()):
        if shared or _is_private(state.nodes, node):
            return Match(node, dict(state.bindings), state.nodes)
    return None


def _is_private(nodes: tuple[fx.Node, ...], anchor: fx.Node) -> bool:
    inside = set(nodes)
    return all(node is anchor or all(user in inside for user in node.users) for node in nodes)


def _match(pattern: Expression, value: object, state: _State) -> Iterator[_State]:
    """Every way in which ``value`` is an instance of ``pattern``."""
    if isinstance(pattern, Wildcard):
        if _fits(pattern, value):
            bound = state.bind(pattern.name, value)
            if bound is not None:
                yield bound
    elif isinstance(pattern, Constant):
        if value_key(pattern.value) == value_key(value):
            yield state
    elif isinstance(pattern, Part):
        if (
            isinstance(value, fx.Node)
            and value.target is operator.getitem
            and value.args[1] == pattern.index
        ):
            yield from _match(pattern.call, value.args[0], state.visit(value))
    elif isinstance(pattern, Call):
        if isinstance(value, fx.Node) and value.target is pattern.target:
            yield from _match_call(pattern, value, state.visit(value))
    elif isinstance(value, (list, tuple)) and len(value) == len(pattern):
        yield from _match_all(pattern, tuple(value), state)


def _match_call(pattern: Call, node: fx.Node, state: _State) -> Iterator[_State]:
    target = node.target
    assert isinstance(target, OpOverload)
    try:
        arguments = bind_arguments(target, node.args, node.kwargs)
    except PatternError:
        return
    yield from _match_all(pattern.arguments, arguments, state)
    if target in _COMMUTATIVE:
        first, second, *rest = arguments
        yield from _match_all(pattern.arguments, (second, first, *rest), state)


def _match_all(
    patterns: tuple[Expression, ...], values: tuple[object, ...], state: _State
) -> Iterator[_State]:
    if not patterns:
        yield state
        return
    for first in _match(patterns[0], values[0], state):
        yield from _match_all(patterns[1:], values[1:], first)


def _fits(wildcard: Wildcard, value: object) -> bool:
    if wildcard.kind is Kind.TENSOR:
        return isinstance(value, fx.Node)
    if wildcard.kind is Kind.SCALAR:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return not isinstance(value, fx.Node)
