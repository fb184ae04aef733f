"""Operators that write over a value that nothing needs any more, in place of those that copy it.

For graphs that ATen's kernels run: the last of all passes, since a graph that writes is no longer
one that others may reorder. A value is dead if nothing reads it, or what looks at its memory,
later. An input is written to only by what becomes of that very input in the end.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import cast

import torch
from torch import fx
from torch._ops import OpOverload

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import AttributeInput, Computed, ResultView, UserInput
from plait_fx_passes.layouts import may_overlap, same_strides
from plait_fx_passes.op_info import OpKind, functional_variant, op_info
from plait_fx_passes.passes.base import Pass, PassContext, made_by
from plait_fx_passes.passes.calls import call_before
from plait_fx_passes.passes.cleanup import has_effects
from plait_fx_passes.record.written import original_of
from plait_utils import dataclass

aten = torch.ops.aten

_WRITERS = """
    index_put index_copy index_add index_fill index_reduce scatter scatter_add scatter_reduce put
    masked_fill masked_scatter
"""
_ELEMENTWISE = """
    add sub mul div addcmul addcdiv lerp abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt
    reciprocal square sin cos tan tanh sinh cosh asin acos atan sigmoid relu silu gelu hardtanh
    leaky_relu elu erf erfc floor ceil round trunc frac clamp clamp_min clamp_max pow remainder fmod
    logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not
"""
IN_PLACE = frozenset((*_WRITERS.split(), *_ELEMENTWISE.split()))
"""Operators of ATen of which a form with `_` does the same to its first argument."""


@cache
def in_place_form(target: OpOverload) -> OpOverload | None:
    """What does the same to the first argument of an operator, if that is in the table."""
    namespace, name = target._schema.name.split("::")
    if namespace != "aten" or name not in IN_PLACE:
        return None
    found = getattr(getattr(aten, f"{name}_", None), target._overloadname, None)
    if not isinstance(found, OpOverload):
        return None
    variant = functional_variant(found)
    return found if variant is not None and variant.op is target else None


PARTS: Mapping[OpOverload, OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
"""Operators that replace a part, with those that look at it: the new part is copied there."""


@dataclass(frozen=True, slots=True)
class Write:
    """A call, and the values that it may write over, each with which of its results that becomes:
    None where it has one."""

    node: fx.Node
    over: tuple[tuple[fx.Node, int | None], ...]


def _write_of(node: fx.Node) -> Write | None:
    """What a call would write over; None for one that has no such form."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return None
    original = original_of(target)
    if original is not None:
        return write_of_users(node, original)
    if in_place_form(target) is None and target not in PARTS:
        return None
    if has_effects(node) or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    return Write(node, ((node.args[0], None),))


def write_of_users(node: fx.Node, original: OpOverload) -> Write | None:
    """The call of an operator of a user's, which gives its own results and then what it wrote;
    None for one that writes to lists."""
    info = op_info(original)
    own = sum(result.alias_info is None for result in original._schema.returns)
    over: list[tuple[fx.Node, int | None]] = []
    for name, position in zip(info.written, info.positions, strict=True):
        value = node.kwargs.get(name)
        if position is not None and position < len(node.args):
            value = node.args[position]
        if not isinstance(value, fx.Node):
            return None
        over.append((value, own + len(over)))
    if own + len(over) == 1:
        over = [(over[0][0], None)]
    elif not all(user.target is operator.getitem for user in node.users):
        return None
    return Write(node, tuple(over))


@dataclass(slots=True)
class _Liveness:
    """Who looks at whose memory, and when for the last time."""

    graph: fx.Graph
    place: dict[fx.Node, int] = field(default_factory=dict)
    roots: dict[fx.Node, fx.Node] = field(default_factory=dict)
    groups: dict[fx.Node, list[fx.Node]] = field(default_factory=dict)
    """By what allocates memory, all that looks at it."""

    def __post_init__(self) -> None:
        for place, node in enumerate(self.graph.nodes):
            self.place[node] = place
            if isinstance(node.meta.get("val"), torch.Tensor):
                self.join(node, storage_root(node))

    def join(self, node: fx.Node, root: fx.Node) -> None:
        """Note that a node looks at memory."""
        self.roots[node] = root
        self.groups.setdefault(root, []).append(node)

    def _until(self, user: fx.Node) -> float:
        """How long a call reads what it is given: a collective until somebody waits for it."""
        target = user.target
        if not isinstance(target, OpOverload) or not op_info(target).communicates:
            return self.place[user]
        return self.place[user] if target._schema.name.endswith("::wait_tensor") else math.inf

    def is_dead(self, value: fx.Node, node: fx.Node) -> bool:
        """Whether nothing but a call needs a value, or what shares its memory, from then on."""
        here = self.place[node]
        root = self.roots.get(value)
        if root is None:
            return False
        for each in self.groups[root]:
            if each is not value and each in node.all_input_nodes:
                return False
            if any(self._until(user) > here for user in each.users if user is not node):
                return False
        return sum(each is value for each in _arguments(node)) == 1


def _arguments(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes among a call's arguments, as often as they occur."""
    waiting: list[object] = [node.args, node.kwargs]
    while waiting:
        each = waiting.pop()
        if isinstance(each, fx.Node):
            yield each
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each


def _fits(value: fx.Node, result: object) -> bool:
    """Whether a result lies as a value does: of one dtype, each element in a place of its own."""
    old = value.meta["val"]
    if not isinstance(old, torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    alike = old.dtype == result.dtype and old.device == result.device
    return alike and same_strides(old, result) and not may_overlap(old)


def _result(node: fx.Node, place: int | None) -> object:
    value = node.meta["val"]
    return value if place is None else value[place]


def _is_fresh(root: fx.Node) -> bool:
    """Whether a call made memory that only it knows."""
    made = root.args[0] if root.target is operator.getitem else root
    target = made.target if isinstance(made, fx.Node) else None
    if not isinstance(target, OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return op_info(target).kind is OpKind.FUNCTIONAL


def _write_in_place(context: PassContext) -> None:
    # What is held from call to call must not be written over, and places in memory stay.
    if context.aten.frozen or context.memory.counts_places:
        return
    live = _Liveness(context.graph)
    for chain in _chains_to_inputs(context):
        if not all(_is_possible(write, live, {write.over[0][0]}) for write in chain):
            continue
        if not all(_apply(context, write.node, live) for write in chain):
            return
    for node in list(context.graph.nodes):
        write = _write_of(node)
        if write is None or "in_place" in node.meta or not node.users:
            continue
        if _is_possible(write, live, set()) and not _apply(context, node, live):
            return


def _is_possible(write: Write, live: _Liveness, inputs: set[fx.Node]) -> bool:
    """Whether all that a call would write over is dead then; of inputs only some may be written."""
    for value, place in write.over:
        root = live.roots.get(value)
        if root is None or not live.is_dead(value, write.node):
            return False
        if value not in inputs and not _is_fresh(root):
            return False
        if not _fits(value, _result(write.node, place)):
            return False
    return True


def _chains_to_inputs(context: PassContext) -> Iterator[list[Write]]:
    """For each input that is written back: the calls of which each writes over the last one's
    result, the first over the input itself."""
    aten_graph = context.aten
    placeholders, results = aten_graph.placeholders, aten_graph.results
    shown = {each.result for each in aten_graph.outputs if isinstance(each, (Computed, ResultView))}
    apart = {index for group in aten_graph.shared_inputs for index in group}
    apart |= {each.input for each in aten_graph.metadata_mutations}
    written = [each.input for each in aten_graph.mutations]
    for mutation in aten_graph.mutations:
        source, given = aten_graph.inputs[mutation.input], placeholders[mutation.input]
        if not isinstance(source, (UserInput, AttributeInput)) or mutation.input in apart:
            continue
        if mutation.result in shown or written.count(mutation.input) > 1:
            continue
        if not mutation.counted or given.meta["val"].requires_grad:
            continue
        result = results[mutation.result]
        looking = [each for each in results if storage_root(each) is storage_root(result)]
        if len(looking) > 1:  # others would look at the input's memory
            continue
        chain = _chain(result, given)
        if chain and all(len(write.over) == 1 for write in chain):
            yield chain


def _chain(result: fx.Node, given: fx.Node) -> list[Write]:
    chain: list[Write] = []
    node = result
    while node is not given:
        write = _write_of(node)
        if write is None:
            return []
        chain.insert(0, write)
        node = write.over[0][0]
    return chain


def _apply(context: PassContext, node: fx.Node, live: _Liveness) -> bool:
    """Let a call write over values, and all that used its results use these; False without fuel."""
    write = _write_of(node)
    if write is None or not context.fuel.take():
        return False
    target = cast(OpOverload, node.target)
    with context.graph.inserting_before(node):
        original = original_of(target)
        if original is not None:
            _call_original(context, write, original, live)
        elif target in PARTS:
            value, part, *where = node.args
            view = call_before(context, node, PARTS[target], (value, *where), node.kwargs)
            live.place[view] = live.place[node]
            live.join(view, live.roots[cast(fx.Node, value)])
            _writing(context, live, node, aten.copy_.default, (view, part), {})
        elif (form := in_place_form(target)) is not None:
            _writing(context, live, node, form, node.args, node.kwargs)
    if original is None:
        _use(node, write.over[0][0], live)
    context.matches[str(target)] += 1
    context.rewrites += 1
    return True


def _writing(
    context: PassContext,
    live: _Liveness,
    node: fx.Node,
    op: OpOverload,
    args: Sequence[fx.node.Argument],
    kwargs: Mapping[str, fx.node.Argument],
) -> fx.Node:
    """A call that writes, before a node."""
    name = op._schema.name.split("::")[1]
    made = context.graph.create_node("call_function", op, tuple(args), dict(kwargs), name=name)
    made.meta = {**node.meta, **made_by(context.running, node), "in_place": True}
    live.place[made] = live.place[node]
    return made


def _use(node: fx.Node, value: fx.Node, live: _Liveness) -> None:
    """Let all that used a node use a value instead, and erase the node."""
    root = live.roots[value]
    for each in live.groups.pop(node, []):  # what looks at the new memory looks at the old one
        if each is not node:
            live.join(each, root)
    node.replace_all_uses_with(value)
    live.roots.pop(node, None)
    node.graph.erase_node(node)


def _call_original(
    context: PassContext, write: Write, original: OpOverload, live: _Liveness
) -> None:
    """Call an operator of a user's with the values themselves."""
    node = write.node
    made = _writing(context, live, node, original, node.args, node.kwargs)
    returned = original._schema.returns
    own = [n for n, result in enumerate(returned) if result.alias_info is None]
    values = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else ()
    made.meta["val"] = None
    if len(returned) == 1 and own:
        made.meta["val"] = values[0]
    elif returned:
        over = iter(value.meta["val"] for value, _ in write.over)
        made.meta["val"] = tuple(
            values[own.index(n)] if n in own else next(over) for n in range(len(returned))
        )
    if write.over[0][1] is None:
        _use(node, write.over[0][0], live)
        return
    by_place = {place: value for value, place in write.over}
    for user in list(node.users):
        place = cast(int, user.args[1])
        if place in by_place:
            _use(user, by_place[place], live)
        elif len(returned) == 1:
            user.replace_all_uses_with(made)
            live.join(made, made)
            context.graph.erase_node(user)
        else:
            user.args = (made, own[place])
    context.graph.erase_node(node)


WRITE_IN_PLACE = Pass(
    "in-place",
    _write_in_place,
    "writes over values that nothing needs any more, and inputs that are to be written; the last"
    " pass, for graphs that ATen's kernels run",
)
