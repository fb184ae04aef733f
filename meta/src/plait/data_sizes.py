"""Sizes that depend on data: what was assumed of them as a graph was captured, and if it holds.

The tracer takes such a size for a symbol, and torch's rules for fake tensors assume of it what
decides on shapes: that two are equal, that one is not 1. Where that does not hold in a call,
`OtherSizesError` is raised, after which the tracer makes the call as plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import fx

from plait.switches import kept_settings, switched_by
from plait_utils import data_sizes, dataclass, draws
from plait_utils.checks import CheckFailedError
from plait_utils.data_sizes import data_symbols, is_of_data
from plait_utils.fake import FakeMode, is_fake
from plait_utils.open_functions import open_call

Bound: TypeAlias = dict[str, Any]
"""What the symbols of a capture are in one call, or in a program, by their names."""


class OtherSizesError(CheckFailedError):
    """Sizes are others than those that a graph was captured with."""


@dataclass(slots=True)
class _Far:
    """How far a graph has run: up to a node."""

    node: str | None = None


@contextmanager
def told_how_far() -> Iterator[_Far]:
    """An OtherSizesError says up to which node the graph has run (see `plait_utils.draws`)."""
    far = _Far()
    try:
        yield far
    except OtherSizesError as error:
        setattr(error, draws.NODE, far.node)
        raise


def has_data_sizes(captured: fx.GraphModule) -> bool:
    """Whether a graph has sizes that depend on data."""
    return any(data_symbols(node.meta.get("val")) for node in captured.graph.nodes)


class Sizes:
    """The sizes of a captured graph's values, as it was captured."""

    def __init__(self, captured: fx.GraphModule) -> None:
        self._formulas: dict[fx.Node, list[list[_Formula]]] = {}
        self._conditions = _conditions(captured)

    def give(self, node: fx.Node, value: Any, bound: Bound) -> None:
        """Take in the sizes and strides of an input, which say what the symbols are.

        Raises OtherSizesError where two say other things of one.
        """
        for formula, size in self._pairs(node, value):
            if formula.key:
                _require(bound.setdefault(formula.key, size) == size)
            else:
                _require(formula.compute(bound) == size)
        if isinstance(value, torch.Tensor) and _value(node)._has_symbolic_sizes_strides:
            for each, stride in zip(_value(node).stride(), value.stride(), strict=True):
                formula = _formula(each)
                if formula.is_symbol:
                    bound.setdefault(formula.key, stride)

    def take(self, node: fx.Node, value: Any, bound: Bound) -> None:
        """Take in the sizes of what a node gives. Raises OtherSizesError where they are others
        than those that follow from what is known."""
        for formula, size in self._pairs(node, value):
            if formula.is_symbol or formula.key in bound:
                _require(bound.setdefault(formula.key, size) == size)
                continue
            try:
                found = formula.compute(bound)
            except KeyError:  # of a symbol that no value has shown
                raise OtherSizesError from None
            _require(found == size)

    def conditions(self, known: set[Any]) -> list[Callable[[Bound], Any]]:
        """What is assumed of these symbols that depend on data, and of no other, in a form that
        tells whether it holds; what was told of before is left out."""
        found: list[Any] = []
        rest: list[Any] = []
        for each in self._conditions:
            is_known = set(filter(is_of_data, each.free_symbols)) <= known
            (found if is_known else rest).append(each)
        self._conditions = rest
        return [_python(each) for each in found]

    @property
    def is_told(self) -> bool:
        """Whether all that was assumed has been told of."""
        return not self._conditions

    def _pairs(self, node: fx.Node, value: Any) -> Iterator[tuple[_Formula, Any]]:
        """The sizes of a value, each with what it was captured as."""
        formulas = self._formulas.get(node)
        if formulas is None:
            formulas = [[_formula(size) for size in sizes] for sizes in _sizes(_value(node))]
            self._formulas[node] = formulas
        found = list(_sizes(value))
        _require(list(map(len, found)) == list(map(len, formulas)))
        for each, sizes in zip(formulas, found, strict=True):
            yield from zip(each, sizes, strict=True)


@dataclass(frozen=True, slots=True)
class _Formula:
    """A size as it was captured."""

    expression: Any
    compute: Callable[[Bound], Any]
    key: str
    """What it is known by; nothing for a number."""
    is_symbol: bool


def _formula(size: Any) -> _Formula:
    expression = data_sizes.formula(size)
    is_number = isinstance(expression, int) or not expression.free_symbols
    key = "" if is_number else str(expression)
    return _Formula(expression, _python(expression), key, bool(key) and expression.is_Symbol)


def _require(holds: Any) -> None:
    if not holds:
        raise OtherSizesError


def _settled(formulas: Sequence[_Formula], bound: Bound) -> list[_Formula]:
    """Find the symbols that follow from products of them; the products of which none follows.

    Raises OtherSizesError where what is known gives other products.
    """
    rest: list[_Formula] = []
    for each in formulas:
        expression, product = each.expression, bound[str(each.expression)]
        unknown = [symbol for symbol in expression.free_symbols if str(symbol) not in bound]
        if len(unknown) == 1 and unknown[0] not in (expression / unknown[0]).free_symbols:
            other = _python(expression / unknown[0])(bound)
            if other != 0:
                bound[str(unknown[0])] = product // other
                unknown = []
        if unknown:
            rest.append(each)
        else:
            _require(each.compute(bound) == product)
    return rest


def check_shapes(
    program: fx.GraphModule, examples: Sequence[Any], given: Sequence[tuple[fx.Node, Any]]
) -> None:
    """Find out whether the shapes of a graph are what they were captured as, for some sizes.

    Where the sizes are symbols, what they are compared by are conditions of their environment.

    Args:
        program: the graph for these examples.
        examples: fakes of its inputs, or numbers.
        given: inputs of the captured graph: its nodes, each with an example or an int.

    Raises OtherSizesError where they are not, or an operator fails.
    """
    environments = [each.fake_mode.shape_env for each in examples if is_fake(each)]
    mode = FakeMode(environments[0] if environments else None)
    like = {id(each): _like(each, mode) for each in examples}
    sizes, bound = Sizes(program), Bound()
    formulas = [_formula(n) for node, _ in given for each in _sizes(_value(node)) for n in each]
    products = [each for each in formulas if each.key and not each.is_symbol]
    try:
        for node, value in given:
            sizes.give(node, like.get(id(value), value), bound)
        open_products = _settled(products, bound)
        with mode, torch.no_grad(), kept_settings(switched_by(program.graph)):
            checked = _Checked(program, sizes, bound, mode, {node.name: node for node, _ in given})
            checked.run(*[like[id(each)] for each in examples], enable_io_processing=False)
        _require(len(_settled(open_products, bound)) == len(open_products))
    except OtherSizesError:
        raise
    except Exception as error:
        raise OtherSizesError from error


class _Checked(fx.Interpreter):
    """Runs a graph on fakes as it is traced, and raises OtherSizesError at the first size that is
    another than as it was captured."""

    def __init__(
        self,
        program: fx.GraphModule,
        sizes: Sizes,
        bound: Bound,
        mode: Any,
        inputs: Mapping[str, fx.Node],
    ) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._inputs = inputs
        self._sizes = sizes
        self._bound = bound
        self._mode = mode

    def run_node(self, n: fx.Node) -> Any:
        value = self._gradients(n) if n.target is torch.autograd.grad else super().run_node(n)
        if n.op == "get_attr":
            return self._mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
        if n.op.startswith("call") and _value(n) is not None:
            self._sizes.take(n, value, self._bound)
            self._check_memory(n, value)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = open_call("call_function", target, args, kwargs)
        return super().call_function(target, args, kwargs) if made is NotImplemented else made

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = open_call("call_method", target, args, kwargs)
        return super().call_method(target, args, kwargs) if made is NotImplemented else made

    def _gradients(self, node: fx.Node) -> list[Any]:
        """What a node that differentiates gives: tensors like those that it is asked for."""
        args, _ = self.fetch_args_kwargs_from_env(node)
        of = args[1] if isinstance(args[1], list | tuple) else [args[1]]
        pairs = zip(_value(node), of, strict=True)
        return [None if known is None else torch.empty_like(each) for known, each in pairs]

    def _check_memory(self, node: fx.Node, value: Any) -> None:
        """Raise CheckFailedError where a result shares other memory than it was captured with."""
        for each in node.all_input_nodes:
            before = _value(self._inputs.get(each.name, each))
            tensors = (value, self.env.get(each), _value(node), before)
            if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
                now, given, then, had = map(_storage, tensors)
                _require((now == given) is (then == had))


def _like(example: Any, mode: Any) -> Any:
    """A fake tensor of its own with the sizes of another; a number as it is."""
    if not isinstance(example, torch.Tensor):
        return example
    with mode, torch.no_grad():
        return torch.empty_strided(
            example.shape, example.stride(), dtype=example.dtype, device=example.device
        )


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _sizes(value: Any) -> Iterator[tuple[Any, ...]]:
    """The sizes of each tensor in a value, and each int."""
    if isinstance(value, torch.Tensor):
        yield tuple(value.shape)
    elif isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        yield (value,)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _sizes(item)


def _python(expression: Any) -> Callable[[Bound], Any]:
    """What computes an expression from the symbols."""
    if isinstance(expression, int):
        return lambda bound: expression
    from plait_utils.size_text import python_of  # it imports sympy

    places = {symbol: f"bound[{str(symbol)!r}]" for symbol in expression.free_symbols}
    code = f"lambda bound: {python_of(expression, places)}"
    found: Callable[[Bound], Any] = eval(code, {"math": math, "torch": torch})
    return found


def _conditions(captured: fx.GraphModule) -> list[Any]:
    """What the environment of a capture assumed of data."""
    for node in captured.graph.nodes:
        value = _value(node)
        environment = getattr(getattr(value, "fake_mode", None), "shape_env", None)
        if isinstance(value, torch.Tensor) and environment is not None:
            table = environment.deferred_runtime_asserts
            return [each.expr for found in table.values() for each in found]
    return []
