"""Graphs with symbolic sizes: the sizes are arguments of nodes as they are, as numbers would be.

What surrounds such a graph must not depend on them, or reads them from tensors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.record.numbers import NumberNode
from plait_utils.forks import new_lock

T = TypeVar("T")

Places: TypeAlias = "dict[Any, str]"
"""For each symbol the Python that reads it from ``inputs``."""

_MODULES = 64
"""For how many sets of sizes a graph is kept."""


class OpenGraph(fx.Graph):
    """A graph whose nodes take symbolic sizes; torch's own warns of each."""

    def create_node(
        self, op: str, target: Any, args: Any = None, kwargs: Any = None, *rest: Any, **more: Any
    ) -> fx.Node:
        node = super().create_node(op, target, None, None, *rest, **more)
        node.args, node.kwargs = args or (), kwargs or {}
        return node


def refuse_open_surroundings(graph: AtenGraph) -> None:
    """Check that what is done around the graph can be done for all sizes.

    What the program returns may have sizes that tensors tell; they are read when it has run. Other
    symbolic numbers are part of what it is recorded as.

    Raises:
        AtenTraceError: there is one of these, or a size that no tensor tells.
    """
    if any(
        isinstance(leaf, torch.SymInt) for leaf in _leaves((graph.metadata_mutations, graph.inputs))
    ):
        raise AtenTraceError("it changes the geometry of an input by its sizes")
    leaves = list(_leaves(graph.outputs))
    if any(isinstance(leaf, torch.SymFloat | torch.SymBool) for leaf in leaves):
        raise AtenTraceError("it returns a number that depends on its sizes")
    reader([leaf for leaf in leaves if isinstance(leaf, torch.SymInt)], places_in(graph))


def places_in(graph: AtenGraph) -> Places:
    """Where the inputs of a graph tell the symbols that it is recorded with."""
    return size_places([node.meta["val"] for node in graph.placeholders])


class Sized(Generic[T]):
    """A value with symbolic sizes in it, for the sizes of inputs."""

    def __init__(self, value: T, places: Places) -> None:
        self._value = value
        self._read = reader(
            [leaf for leaf in _leaves(value) if isinstance(leaf, torch.SymInt)], places
        )

    def at(self, inputs: Sequence[torch.Tensor]) -> T:
        """The value with numbers."""
        return cast(T, _filled(self._value, iter(self._read(inputs))))


def _filled(value: object, numbers: Iterator[int]) -> object:
    """The value with numbers in the place of its symbolic sizes, in the order of `_leaves`."""
    if isinstance(value, torch.SymInt):
        return next(numbers)
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(each, numbers) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        found = {each.name: _filled(getattr(value, each.name), numbers) for each in fields}
        return dataclasses.replace(value, **found)
    return value


def has_open_sizes(value: object) -> bool:
    """Whether symbolic sizes are in a value."""
    return any(isinstance(leaf, torch.SymInt) for leaf in _leaves(value))


def size_places(values: Sequence[object]) -> Places:
    """The symbols that are sizes or strides of tensors, and where."""
    found = {
        symbol: f"inputs[{place}].shape[{dim}]"
        for symbol, (place, dim) in dimensions(values).items()
    }
    for place, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            strides: Sequence[object] = value.stride()
            for dim, step in enumerate(strides):
                if isinstance(step, torch.SymInt) and expression_of(step).is_Symbol:
                    found.setdefault(expression_of(step), f"inputs[{place}].stride({dim})")
    return found


def dimensions(values: Sequence[object]) -> dict[Any, tuple[int, int]]:
    """For each symbol that is the size of a tensor the tensor's place and the dimension."""
    found: dict[Any, tuple[int, int]] = {}
    for place, value in enumerate(values):
        shape: Sequence[object] = value.shape if isinstance(value, torch.Tensor) else ()
        for dim, size in enumerate(shape):
            if isinstance(size, torch.SymInt) and expression_of(size).is_Symbol:
                found.setdefault(expression_of(size), (place, dim))
    return found


def expression_of(size: torch.SymInt | torch.SymFloat) -> Any:
    """What a size was recorded as, whatever its environment has learned of its symbols since."""
    expression = size.node._expr
    fixed = getattr(size.node.shape_env, "fixed", None)
    return expression.xreplace(fixed) if fixed else expression


def fix_sizes(mode: FakeTensorMode) -> None:
    """Take those sizes for numbers of which the recording says so, and that no tensor tells.

    That they are is a condition of all that is recorded.
    """
    environment: Any = mode.shape_env
    if environment is not None and environment.replacements:
        found = {symbol: environment.replace(symbol) for symbol in environment.replacements}
        environment.fixed = {symbol: n for symbol, n in found.items() if n.is_Integer}


def missing_sizes(graph: fx.Graph, told: int, inputs: Sequence[fx.Node]) -> list[tuple[int, int]]:
    """The sizes that nodes of a graph are computed with and that none of its first ``told``
    placeholders has: for each the one of ``inputs``, and its dimension, that has it.

    Raises:
        AtenTraceError: none has it.
    """
    placeholders = graph.find_nodes(op="placeholder")[:told]
    known = dimensions([node.meta["val"] for node in placeholders])
    places = dimensions([node.meta["val"] for node in inputs])
    symbols = dict.fromkeys(symbol for node in graph.nodes for symbol in _symbols_of(node))
    missing = [symbol for symbol in symbols if symbol not in known]
    if not places.keys() >= set(missing):
        raise AtenTraceError("a size of the backward is known from no tensor")
    return [places[symbol] for symbol in missing]


def telling_sizes(graph: fx.Graph) -> set[fx.Node]:
    """The placeholders that nothing uses but for a size that no other placeholder in use has."""
    placeholders = graph.find_nodes(op="placeholder")
    unused = [node for node in placeholders if not node.users]
    others = [node for node in graph.nodes if node not in set(unused)]
    needed = {symbol for node in others for symbol in _symbols_of(node)}
    values = [node.meta["val"] for node in placeholders if node.users]
    needed -= set(size_places(values))
    found: set[fx.Node] = set()
    for node in unused:
        told = needed & set(size_places([node.meta["val"]]))
        if told:
            found.add(node)
            needed -= told
    return found


def _symbols_of(node: fx.Node) -> dict[Any, None]:
    """The symbols that a node is computed with, in order. A float may be a formula of sizes; one
    that a node gives is none."""
    found: dict[Any, None] = {}
    for value in _leaves([list(node.args), list(node.kwargs.values()), node.meta.get("val")]):
        numbers: Sequence[object] = (value,)
        if isinstance(value, torch.Tensor):
            numbers = (*value.shape, *value.stride()) if value.layout is torch.strided else ()
        for size in numbers:
            if isinstance(size, torch.SymInt) or (
                isinstance(size, torch.SymFloat) and not isinstance(size.node, NumberNode)
            ):
                found |= dict.fromkeys(sorted(expression_of(size).free_symbols, key=str))
    return found


def reader(sizes: Sequence[int | torch.SymInt], places: Places) -> Callable[..., tuple[int, ...]]:
    """A function of ``inputs`` that computes these sizes.

    Raises:
        AtenTraceError: they depend on a symbol that has no place.
    """
    return _reader(
        [expression_of(each) if isinstance(each, torch.SymInt) else each for each in sizes], places
    )


def _reader(expressions: Sequence[Any], places: Places) -> Callable[..., tuple[int, ...]]:
    from plait_utils.size_text import python_of

    try:
        parts = [python_of(each, places) for each in expressions]
    except KeyError as error:
        raise AtenTraceError(f"the size {error} is known from no tensor") from None
    source = "".join(f"{part}, " for part in parts)
    code = compile(f"lambda inputs: ({source})", "<plait sizes>", "eval")
    made: Callable[..., tuple[int, ...]] = eval(code, {"math": math, "torch": torch})
    return made


def dense_strides(value: torch.Tensor) -> Callable[..., tuple[int, ...]] | None:
    """What computes the strides of tensors that lie in memory as this one does, from their sizes.

    Its argument is a sequence whose first element is the tensor. None where elements of the value
    have gaps between them, or the order of its dimensions does not follow from its symbols.
    """
    sizes, strides = (
        [_counted(_plain(each)) for each in numbers] for numbers in (value.shape, value.stride())
    )
    left, order, expected = list(range(len(sizes))), [], 1
    while left:
        inner = [d for d in left if _is_same(strides[d], expected)]
        if not inner:
            return None
        found = max(inner, key=lambda d: (sizes[d] == 1, d))
        order.append(found)
        left.remove(found)
        expected = expected * sizes[found]

    def read(inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        shape = inputs[0].shape
        made, step = [0] * len(order), 1
        for dim in order:
            made[dim] = step
            step *= max(shape[dim], 1)
        return tuple(made)

    return read


def _plain(size: int | torch.SymInt) -> Any:
    return expression_of(size) if isinstance(size, torch.SymInt) else size


def _counted(number: Any) -> Any:
    """An expression as it is where no size is 0: strides count such as one of 1."""
    if isinstance(number, int) or not number.args:
        return number
    operands = [_counted(each) for each in number.args]
    if number.func.__name__ == "Max" and len(operands) == 2 and 1 in operands:
        return operands[1 - operands.index(1)]
    return number.func(*operands)


def _is_same(one: Any, other: Any) -> bool:
    difference = one - other
    return bool((difference if isinstance(difference, int) else difference.expand()) == 0)


class AtSizes:
    """Runs a graph by ATen's kernels, whatever the sizes of its inputs.

    Raises AtenTraceError where a size is known from no tensor.
    """

    def __init__(self, graph: AtenGraph) -> None:
        self._graph = graph
        self._lock = new_lock()
        self._modules: dict[tuple[int, ...], fx.GraphModule] = {}
        found = {symbol for node in graph.graph.nodes for symbol in _symbols_of(node)}
        self._symbols = tuple(sorted(found, key=str))
        self._read = _reader(
            self._symbols, size_places([n.meta["val"] for n in graph.placeholders])
        )

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        result: Sequence[torch.Tensor] = self.at(inputs)(*inputs)
        return result

    def at(self, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
        """The graph for the sizes of inputs."""
        sizes = self._read(inputs)
        with self._lock:
            module = self._modules.get(sizes)
            if module is None:
                if len(self._modules) >= _MODULES:
                    self._modules.clear()
                module = self._modules[sizes] = self._made(sizes)
        return module

    def _made(self, sizes: tuple[int, ...]) -> fx.GraphModule:
        values = dict(zip(self._symbols, sizes, strict=True))

        def number(size: torch.SymInt | torch.SymFloat) -> object:
            if isinstance(size.node, NumberNode):
                return size
            kind = int if isinstance(size, torch.SymInt) else float
            return kind(expression_of(size).xreplace(values))

        module = self._graph.module()
        numbers = torch.SymInt, torch.SymFloat
        for node in module.graph.nodes:
            node.args = tree_map_only(numbers, number, node.args)
            node.kwargs = tree_map_only(numbers, number, node.kwargs)
        module.recompile()
        return module


class Conditions:
    """What the stages note about the sizes of a graph from now on.

    A program that is compiled later than what it belongs to is right where this holds.
    """

    def __init__(self, graph: AtenGraph) -> None:
        mode = graph.fake_mode
        self._environment = None if mode is None else mode.shape_env
        self._known = len(self._noted())

    def _noted(self) -> Sequence[Any]:
        return () if self._environment is None else self._environment.guards

    def check(self, graph: AtenGraph) -> Callable[[Sequence[torch.Tensor]], bool] | None:
        """What says of inputs of a part of the graph whether all that was noted holds; None where
        nothing was.

        Raises AtenTraceError where something was noted of a size that no input has.
        """
        noted = self._noted_of(graph)
        if not noted:
            return None
        holds = _reader(noted, size_places([node.meta["val"] for node in graph.placeholders]))
        return lambda inputs: all(holds(inputs))

    def _noted_of(self, graph: AtenGraph) -> list[Any]:
        """What was noted that may have answered something of the sizes of a graph: of these, or of
        sizes that conditions tie to them. Others are those of other parts alone."""
        every = [guard.expr for guard in self._noted()]
        if len(every) == self._known:
            return []
        near = {symbol for node in graph.graph.nodes for symbol in _symbols_of(node)}
        reached: set[Any] = set()
        while near - reached:
            reached |= near
            near |= {s for each in every if each.free_symbols & reached for s in each.free_symbols}
        return [each for each in every[self._known :] if each.free_symbols & reached]


def is_open(graph: AtenGraph) -> bool:
    """Whether a graph has symbolic sizes."""
    return any(True for node in graph.graph.nodes for _ in _symbols_of(node))


def runner(graph: AtenGraph) -> Callable[..., Sequence[torch.Tensor]]:
    """What runs a graph by ATen's kernels.

    The code of a graph of static sizes is written when it is first called, as most never is.
    """
    return AtSizes(graph) if is_open(graph) else _Static(graph)


class _Static:
    """Runs a graph of static sizes by ATen's kernels."""

    def __init__(self, graph: AtenGraph) -> None:
        self._graph = graph
        self._module: fx.GraphModule | None = None

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        module = self._module
        if module is None:  # made twice where two threads are the first: either will do
            module = self._module = self._graph.module()
        result: Sequence[torch.Tensor] = module(*inputs)
        return result


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    else:
        yield value
