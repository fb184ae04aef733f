"""Integers that change from call to call, left open as sizes are.

A position, a count of steps or a number of heads is an integer input of a captured graph. A program
takes tensors, and leaves their sizes open: so each such integer is given to it as the size of one
element that is expanded. Whatever the stages ask of it becomes a condition, as it does of sizes.
Those that no open size can be, negative ones, 0 and 1, are constants of programs of their own.
Integers that are read from tensors are given to the parts of a graph in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plait_utils.forks import new_lock

if TYPE_CHECKING:
    import torch
    from torch import fx

    from plait.shapes import ByShape

_LEAST = 2
_MOST = tuple(1 << bits for bits in (62, 48, 40, 31, 24, 16, 8))
"""Below one of these integers are open, so that what is computed of them has 64 bits."""


def integer_places(captured: fx.GraphModule) -> tuple[int, ...]:
    """The inputs of a captured graph that are integers which change."""
    import torch

    placeholders = captured.graph.find_nodes(op="placeholder")
    return tuple(
        n for n, node in enumerate(placeholders) if isinstance(node.meta.get("val"), torch.SymInt)
    )


class OpenIntegers:
    """Runs a graph whose inputs at `places` are integers.

    Args:
        captured: the symbolic graph.
        places: where its integers are.
        of_sizes: makes what runs a graph with symbolic sizes, of the graph that reads its integers
            from such.
        of_constants: the same, of a graph some of whose integers are constants.
    """

    def __init__(
        self,
        captured: fx.GraphModule,
        places: Sequence[int],
        of_sizes: Callable[[fx.GraphModule], ByShape],
        of_constants: Callable[[fx.GraphModule], ByShape],
    ) -> None:
        placeholders = captured.graph.find_nodes(op="placeholder")
        self._captured = captured
        self._most = _most(captured)
        self._least = {place: _least(placeholders[place]) for place in places}
        self._of_constants = of_constants
        self._lock = new_lock()
        self._runs = {tuple(places): of_sizes(_with_sizes(captured, places))}
        """What runs the graph, by the places of the integers that are open."""

    def __call__(self, *inputs: Any) -> Any:
        run, given = self._chosen(inputs)
        return run(*given)

    def unchanged_on_error(self, *inputs: Any) -> Any:
        """The same, but whatever fails does so before an input is changed.

        Raises CheckFailedError where these inputs' program would not keep that.
        """
        run, given = self._chosen(inputs)
        return run.unchanged_on_error(*given)

    def _chosen(self, inputs: Sequence[Any]) -> tuple[ByShape, Sequence[Any]]:
        given = list(inputs)
        is_open: list[int] = []
        for place, least in self._least.items():
            if least <= inputs[place] < self._most:
                given[place] = _sized(inputs[place])
                is_open.append(place)
        places = tuple(is_open)
        run = self._runs.get(places)
        return (self._made(places) if run is None else run), given

    def _made(self, places: tuple[int, ...]) -> ByShape:
        """What runs the graph where only the integers at these places are open."""
        with self._lock:
            if places not in self._runs:
                self._runs[places] = self._of_constants(_with_sizes(self._captured, places))
            return self._runs[places]


def _least(node: fx.Node) -> int:
    """The least integer that can be open: one that depends on data is a size as others are, which
    have programs of their own where they are 0 or 1."""
    from plait_utils.data_sizes import data_symbols

    return 0 if data_symbols(node.meta["val"]) else _LEAST


def _most(captured: fx.GraphModule) -> int:
    """Up to where integers are open."""
    import torch

    from plait_utils.data_sizes import formula

    values = [node.meta.get("val") for node in captured.graph.nodes]
    formulas = {formula(value) for value in values if type(value) is torch.SymInt}
    fitting = (most for most in _MOST if all(_bound(each, most) < 1 << 63 for each in formulas))
    return next(fitting, 0)


def _bound(expression: Any, most: int) -> int:
    """No part of a formula is greater, whatever its sign, where its integers are at most `most`."""
    if isinstance(expression, int) or expression.is_Integer:
        return abs(int(expression))
    if not expression.args:
        return most
    parts = [_bound(each, most) for each in expression.args]
    if expression.is_Add:
        return sum(parts)
    if expression.is_Mul:
        return math.prod(max(part, 1) for part in parts)
    if expression.is_Pow:
        base, exponent = parts
        return base**exponent if exponent <= 64 else 1 << 64
    return max(parts)


def _sized(number: int) -> Any:
    from torch import empty_strided

    return empty_strided((number,), (0,))


def _with_sizes(captured: fx.GraphModule, places: Sequence[int]) -> fx.GraphModule:
    """The graph, which reads the integers from the sizes of tensors."""
    from torch import fx

    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    placeholders = captured.graph.find_nodes(op="placeholder")
    for node in placeholders:
        copies[node] = graph.node_copy(node)
    for node in (placeholders[place] for place in places):
        given = copies[node]
        given.meta = {**node.meta, "val": _of_open_size(node)}
        copies[node] = graph.call_method("size", (given, 0))
        copies[node].meta = dict(node.meta)
    for node in captured.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return fx.GraphModule(captured, graph, type(captured).__name__)


def _of_open_size(node: fx.Node) -> torch.Tensor:
    """A fake of one element, expanded to a size: that of the integer where it depends on data, else
    one of its own, as an integer may have been another when it was captured, and not all are sizes.
    """
    import torch
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    from plait_utils.data_sizes import data_symbols
    from plait_utils.fake import FakeMode
    from plait_utils.shape_environment import Place

    environment = node.meta["val"].node.shape_env
    size = node.meta["val"]
    if not data_symbols(size):
        place = Place(f"size of {node.name}")
        symbol = environment.create_symbol(
            _LEAST, place, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None, positive=True
        )
        size = environment.create_symintnode(symbol, hint=_LEAST, source=place)
    return FakeMode(environment).with_sizes(torch.empty(1), (size,), (0,))
