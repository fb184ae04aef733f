"""Calls that are alike are lowered once, as those of equal layers are.

What a rule makes of a call depends on the operator and its arguments, on what buffers these load
from and where elements lie in them, on the fake values of arguments and results, and on nothing
else: it runs over buffers that are called "0", "1", ... in order of their first use. What it makes
is a recipe, which each call that is alike carries out with buffers of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_ir_lowering.context import LoweringContext
from plait_ir_lowering.errors import LoweringError
from plait_ir_lowering.ir.graph import Body, Buffer, Definition, Origin
from plait_ir_lowering.ir.index import IndexExpr, as_index
from plait_ir_lowering.ir.renaming import renamed_body, renamed_ref
from plait_ir_lowering.ir.values import loads_of, renamed
from plait_ir_lowering.registry import Lowered
from plait_ir_lowering.tensors import NumberExpr, TensorExpr
from plait_utils import dataclass

LowerCall: TypeAlias = Callable[[LoweringContext, fx.Node, Mapping[fx.Node, Lowered]], Lowered]
"""Lowers one call, given what its arguments were lowered to."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor or a number over buffers "0", "1", ..., and what these are called in the graph."""

    form: TensorExpr | NumberExpr
    number: int
    """Equal for equal forms."""
    names: tuple[str, ...]

    def expression(self) -> TensorExpr | NumberExpr:
        """It, over the buffers of the graph."""
        return _over(self.form, {str(n): name for n, name in enumerate(self.names)})


Known: TypeAlias = "Placed | tuple[Placed | None, ...] | None"
"""What is known of a node: its tensor, or its tensors."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A buffer that a recipe defines."""

    buffer: Buffer
    suffix: str
    """What its name says after the node's."""
    storage_offset: IndexExpr
    description: int


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What a rule made of a call."""

    definitions: tuple[tuple[tuple[_Made, ...], Body], ...]
    result: Known


class _UnlikeError(Exception):
    """An argument of which it cannot be said what others are alike."""


@dataclass(slots=True)
class Lowering:
    """Lowers the calls of one graph."""

    ctx: LoweringContext
    """The graph that is being built."""
    lower_call: LowerCall
    looks_ahead: Callable[[fx.Node], bool | None]
    """What a rule may ask of the uses of its result; None where it does not."""
    known: dict[fx.Node, Known] = field(default_factory=dict)
    recipes: dict[Hashable, _Recipe] = field(default_factory=dict)
    described: dict[str, int] = field(default_factory=dict)
    """By buffer, the number of its description."""
    traced: dict[fx.Node, int] = field(default_factory=dict)
    """By node, the number of what its fake value is like."""
    numbers: dict[Hashable, int] = field(default_factory=dict)
    """Numbers in place of what takes long to compare."""

    def place(self, node: fx.Node, lowered: TensorExpr | NumberExpr) -> None:
        """Take in an input."""
        placed = self._placed(lowered)
        for name in placed.names:
            self.described[name] = self._description(self.ctx, name)
        self.known[node] = placed

    def tensor(self, node: fx.Node) -> Lowered:
        """What a node was lowered to, over the buffers of the graph."""
        found: Lowered = _each(self.known[node], Placed.expression)
        return found

    def lower(self, node: fx.Node) -> None:
        """Take in a call."""
        if node.target is operator.getitem:
            self.known[node] = self._element(node)
            return
        names = self._loaded(node)
        ahead = self.looks_ahead(node)
        key = self._key(node, names, ahead)
        recipe = None if key is None else self.recipes.get(key)
        if recipe is None:
            recipe = self._recipe(node, names, ahead)
            if key is not None:
                self.recipes[key] = recipe
        self.known[node] = self._carried_out(recipe, names)

    def _element(self, node: fx.Node) -> Known:
        whole, position = self.known[node.args[0]], node.args[1]  # type: ignore[index]  # a node
        if not isinstance(whole, tuple) or not isinstance(position, int):
            raise self.ctx.error("it takes an element of what is not a tuple")
        return whole[position]

    def _loaded(self, node: fx.Node) -> dict[str, int]:
        """The buffers that a call's arguments load from, numbered."""
        names: dict[str, int] = {}
        for argument in node.all_input_nodes:
            for placed in _flat(self.known[argument]):
                for name in placed.names:
                    names.setdefault(name, len(names))
        return names

    def _key(self, node: fx.Node, names: Mapping[str, int], ahead: bool | None) -> Hashable | None:
        """All that the node's recipe depends on; None where arguments are of kinds that are not
        compared."""
        try:
            arguments = self._like(node.args, names), self._like(node.kwargs, names)
            result = self._trace_number(node)
        except (_UnlikeError, LoweringError):
            return None
        buffers = tuple([self.described[name] for name in names])
        return node.target, arguments, result, buffers, ahead

    def _like(self, value: Any, names: Mapping[str, int]) -> Hashable:
        """An argument without names."""
        if isinstance(value, fx.Node):
            known = self.known[value]
            if not isinstance(known, Placed):
                raise _UnlikeError
            return known.number, tuple([names[n] for n in known.names]), self._trace_number(value)
        if isinstance(value, list | tuple):
            return type(value), tuple([self._like(item, names) for item in value])
        if isinstance(value, dict):
            return tuple([(name, self._like(item, names)) for name, item in value.items()])
        return _constant(value)

    def _trace_number(self, node: fx.Node) -> int:
        found = self.traced.get(node)
        if found is None:
            found = self.traced[node] = self._number(_traced(node.meta["val"]))
        return found

    def _number(self, description: Hashable) -> int:
        return self.numbers.setdefault(description, len(self.numbers))

    def _description(self, ctx: LoweringContext, name: str) -> int:
        buffer = ctx.buffers[name]
        offset = ctx.storage_offsets.get(name)
        return self._number((buffer.dtype, buffer.device, buffer.layout, offset))

    def _recipe(self, node: fx.Node, names: Mapping[str, int], ahead: bool | None) -> _Recipe:
        """Lower a call over buffers without names."""
        ctx = LoweringContext(self.ctx.options, node=node, ahead=ahead)
        for name, number in names.items():
            ctx.buffers[str(number)] = replace(self.ctx.buffers[name], name=str(number))
            if name in self.ctx.storage_offsets:
                ctx.storage_offsets[str(number)] = self.ctx.storage_offsets[name]

        def numbered(placed: Placed) -> TensorExpr | NumberExpr:
            own = [names[name] for name in placed.names]
            if own == list(range(len(own))):
                return placed.form
            return _over(placed.form, {str(n): str(number) for n, number in enumerate(own)})

        known = {each: _each(self.known[each], numbered) for each in node.all_input_nodes}
        result = _each(self.lower_call(ctx, node, known), self._placed)
        made = [(tuple(self._made(ctx, b) for b in d.buffers), d.body) for d in ctx.definitions]
        return _Recipe(tuple(made), result)

    def _made(self, ctx: LoweringContext, buffer: Buffer) -> _Made:
        name = buffer.name
        description = self._description(ctx, name)
        return _Made(buffer, ctx.suffixes[name], ctx.storage_offsets[name], description)

    def _carried_out(self, recipe: _Recipe, numbers: Mapping[str, int]) -> Known:
        """Define what a recipe defines; returns the node's tensors."""
        ctx = self.ctx
        names = {str(number): name for name, number in numbers.items()}
        origin = ctx.origin() if recipe.definitions else Origin()
        for made, body in recipe.definitions:
            own_body = renamed_body(body, names)
            buffers: list[Buffer] = []
            for each in made:
                own = ctx.add_buffer(each.buffer, each.suffix, each.storage_offset)
                names[each.buffer.name] = own.name
                self.described[own.name] = each.description
                buffers.append(own)
            ctx.definitions.append(Definition(tuple(buffers), own_body, origin))

        def renamed_result(placed: Placed) -> Placed:
            return Placed(placed.form, placed.number, tuple([names[n] for n in placed.names]))

        result: Known = _each(recipe.result, renamed_result)
        return result

    def _placed(self, lowered: TensorExpr | NumberExpr) -> Placed:
        """An expression without names."""
        loaded = dict.fromkeys(load.buffer for load in loads_of([lowered.value]))
        if isinstance(lowered, TensorExpr) and lowered.ref is not None:
            loaded[lowered.ref.buffer] = None
        form = _over(lowered, {name: str(number) for number, name in enumerate(loaded)})
        return Placed(form, self._number(form), tuple(loaded))


def _over(form: TensorExpr | NumberExpr, names: Mapping[str, str]) -> TensorExpr | NumberExpr:
    """An expression over other buffers."""
    value = renamed(form.value, names)
    if isinstance(form, NumberExpr):
        return NumberExpr(value)
    ref = None if form.ref is None else renamed_ref(form.ref, names)
    return TensorExpr(form.dims, value, ref)


def _each(found: Any, change: Callable[[Any], Any]) -> Any:
    """A node's value, or each of its values, changed."""
    if isinstance(found, tuple):
        return tuple(None if each is None else change(each) for each in found)
    return None if found is None else change(found)


def _flat(known: Known) -> Iterator[Placed]:
    for each in known if isinstance(known, tuple) else (known,):
        if each is not None:
            yield each


def _traced(value: Any) -> Hashable:
    """What rules may read from a fake value."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise _UnlikeError
        return (
            value.dtype,
            value.device,
            tuple([each if type(each) is int else as_index(each) for each in value.shape]),
            tuple([each if type(each) is int else as_index(each) for each in value.stride()]),
            as_index(value.storage_offset()),
        )
    if isinstance(value, list | tuple):
        return type(value), tuple([_traced(each) for each in value])
    return _constant(value)


def _constant(value: Any) -> Hashable:
    """An argument that is no tensor; of floats each bit counts."""
    kind = type(value)
    if kind in (float, complex):
        return kind, repr(value)
    if value is None or kind in (int, bool, str):
        return kind, value
    if kind in (torch.dtype, torch.device, torch.memory_format, torch.layout):
        return kind, value
    if isinstance(value, torch.SymInt):
        return as_index(value)
    raise _UnlikeError
