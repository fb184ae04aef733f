"""Finding a pattern's expression in a graph."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import cast

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
    Pattern,
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

    ``bindings`` maps the pattern's parameters to nodes, lists of nodes, numbers or other arguments;
    ``anchors`` are the nodes whose values the pattern's results are, in their order, and ``nodes``
    all matched calls.
    """

    anchors: tuple[fx.Node, ...]
    bindings: dict[str, object]
    nodes: tuple[fx.Node, ...]

    @property
    def anchor(self) -> fx.Node:
        """The node of the first result."""
        return self.anchors[0]

    def node(self, name: str) -> fx.Node:
        """The node bound to a tensor parameter."""
        bound = self.bindings[name]
        assert isinstance(bound, fx.Node), name
        return bound

    def value(self, name: str) -> torch.Tensor:
        """The fake value of the node bound to a tensor parameter."""
        return _tensor_of(self.node(name))

    def values(self, name: str) -> list[torch.Tensor]:
        """The fake values of the nodes bound to a parameter that stands for a run of tensors."""
        bound = self.bindings[name]
        assert isinstance(bound, tuple), name
        return [_tensor_of(node) for node in bound]

    def uses_outside(self, name: str) -> int:
        """How many nodes besides the match use the tensor bound to a parameter."""
        inside = set(self.nodes)
        return sum(user not in inside for user in self.node(name).users)

    @property
    def result(self) -> torch.Tensor:
        """The fake value of the first result."""
        return _tensor_of(self.anchor)

    @property
    def results(self) -> list[torch.Tensor]:
        """The fake values of all results."""
        return [_tensor_of(node) for node in self.anchors]

    @property
    def inputs(self) -> list[fx.Node]:
        """The nodes that stand for the pattern's tensors."""
        bound = self.bindings.values()
        each = [value if isinstance(value, tuple) else (value,) for value in bound]
        return [node for nodes in each for node in nodes if isinstance(node, fx.Node)]


def _tensor_of(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor), node.name
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


def find_matches(pattern: Pattern, node: fx.Node, *, shared: bool = False) -> Iterator[Match]:
    """Every way to match ``pattern`` with ``node`` as its first result.

    Values inside the match must have no users outside it, unless ``shared``: the rewrite would
    otherwise compute them twice.
    """
    for anchors, state in _match_results(pattern.results, [node], (), _State()):
        if shared or _is_private(state.nodes, anchors):
            yield Match(anchors, dict(state.bindings), state.nodes)


def _is_private(nodes: tuple[fx.Node, ...], anchors: tuple[fx.Node, ...]) -> bool:
    inside = set(nodes)
    return all(node in anchors or all(user in inside for user in node.users) for node in nodes)


def _match_results(
    results: tuple[Call | Part, ...],
    candidates: Iterable[fx.Node],
    anchors: tuple[fx.Node, ...],
    state: _State,
) -> Iterator[tuple[tuple[fx.Node, ...], _State]]:
    """Every way to find the results among the graph's nodes, the first of them among candidates."""
    for node in candidates:
        if node in anchors:
            continue
        for found in _match(results[0], node, state):
            known = (*anchors, node)
            if len(results) == 1:
                yield known, found
            else:
                yield from _match_results(results[1:], _near(results[1], found), known, found)


_NEAR = 256
"""So many users of a tensor are looked at for a further result: each of them may be a first one."""


def _near(pattern: Expression, state: _State) -> list[fx.Node]:
    """The nodes that may be an expression's value: users of users of a tensor that is known."""
    if isinstance(pattern, Wildcard):
        bound = dict(state.bindings).get(pattern.name)
        return [bound] if isinstance(bound, fx.Node) else []
    if isinstance(pattern, Part):
        calls = _near(pattern.call, state)
        return [user for call in calls for user in call.users if user.target is operator.getitem]
    parts: tuple[Expression, ...] = ()
    if isinstance(pattern, Call):
        parts = pattern.arguments
    elif isinstance(pattern, tuple):
        parts = pattern
    for part in parts:
        found = _near(part, state)
        if found and isinstance(pattern, tuple):
            return found
        if found and isinstance(pattern, Call):
            # The last ones first: rules are applied from the results up, so these are near.
            users = chain.from_iterable(reversed(node.users) for node in found)
            near = dict.fromkeys(islice(users, _NEAR))
            return [each for each in near if each.target is pattern.target]
    return []


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
    elif isinstance(value, (list, tuple)):
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
    """Every way to match expressions with values one by one, runs of tensors with several."""
    if not patterns:
        if not values:
            yield state
        return
    first, *rest = patterns
    if _is_run(first):
        name = cast(Wildcard, first).name
        least = sum(not _is_run(each) for each in rest)
        most = len(values) - least
        lengths = range(max(most, 0), most + 1) if len(rest) == least else range(most + 1)
        for length in lengths:
            run = values[:length]
            bound = state.bind(name, run) if all(map(_is_node, run)) else None
            if bound is not None:
                yield from _match_all(tuple(rest), values[length:], bound)
    elif values:
        for found in _match(first, values[0], state):
            yield from _match_all(tuple(rest), values[1:], found)


def _is_run(pattern: Expression) -> bool:
    return isinstance(pattern, Wildcard) and pattern.kind is Kind.TENSORS


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node)


def _fits(wildcard: Wildcard, value: object) -> bool:
    if wildcard.kind is Kind.TENSOR:
        return isinstance(value, fx.Node)
    if wildcard.kind is Kind.SCALAR:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return not isinstance(value, fx.Node)
