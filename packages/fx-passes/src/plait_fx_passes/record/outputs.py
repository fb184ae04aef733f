"""From what a recorded program returned to the graph's results and how to rebuild the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument

from plait_fx_passes.aliasing import storage_root
from plait_fx_passes.aten_graph import (
    Computed,
    Detached,
    Followed,
    Geometry,
    InputItself,
    InputView,
    Literal,
    MetadataMutation,
    Mutation,
    OutputSource,
    Repeated,
    ResultView,
    ViewStep,
    WithinOutput,
)
from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.layouts import has_static_sizes, is_dense, may_overlap, same_strides
from plait_fx_passes.record.aliases import Alias, Lineage, Storage, read, with_layout
from plait_fx_passes.record.inputs import InputTable
from plait_fx_passes.record.recorder import Recorder
from plait_utils import dataclass

aten = torch.ops.aten
_REINTERPRETING = frozenset(
    {
        aten.view.dtype,
        aten.view_as_real.default,
        aten.view_as_complex.default,
        aten._conj.default,
        aten._neg_view.default,
    }
)


@dataclass(slots=True)
class Results:
    """The graph's results while they are gathered, and what is said about them."""

    nodes: list[fx.Node] = field(default_factory=list)
    outputs: list[OutputSource] = field(default_factory=list)
    mutations: list[Mutation] = field(default_factory=list)
    metadata: list[MetadataMutation] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    """The program's tensor that each node of `nodes` computes."""
    counted: tuple[int, ...] = ()
    """The inputs that count as changed, besides those written to or of another geometry."""

    def add(self, node: fx.Node, tensor: torch.Tensor) -> int:
        """Return the node too; its position among the results."""
        self.nodes.append(node)
        self.tensors.append(tensor)
        return len(self.nodes) - 1


def finish(recorder: Recorder, table: InputTable, leaves: Sequence[object]) -> Results:
    """Close the graph: return every computed output, shared base and written input once."""
    table.uncounted |= table.written.keys() - table.written_countedly
    results = finish_results(recorder, table, leaves)
    separate(recorder, results.nodes, results.mutations)
    recorder.graph.output(cast(Argument, tuple(results.nodes)))
    return results


def finish_results(recorder: Recorder, table: InputTable, leaves: Sequence[object]) -> Results:
    """What the graph is to return for the program's outputs and writes."""
    merged = [table.values[index] for group in table.shared_groups() for index in group]
    merged_too = any(
        recorder.alias_of(each).storage.placeholder in recorder.reshaped for each in merged
    )
    if merged_too or any(map(table.shares, recorder.reshaped)):  # one object may be several inputs
        raise AtenTraceError("the program changes the geometry of an input whose memory it shares")
    results = Results()
    _add_outputs(recorder, table, leaves, results)
    _add_mutations(recorder, table, results)
    told = {each.input for each in results.mutations} - table.uncounted
    told |= {each.input for each in results.metadata}
    results.counted = tuple(sorted(recorder.counted - told))
    return results


def _add_outputs(
    recorder: Recorder, table: InputTable, leaves: Sequence[object], results: Results
) -> None:
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    shared = _shared_storages(recorder, tensors)
    needing = {id(recorder.alias_of(leaf).storage) for leaf in tensors if leaf.requires_grad}
    direct: dict[int, int] = {}
    bases: dict[int, int] = {}
    # Results that the caller gets as they are come first, so that a program without aliasing
    # needs no wrapper; the hidden bases of views follow. What is detached from another output is
    # a view of that, and not the other way round.
    for leaf in sorted(tensors, key=lambda each: not each.requires_grad):
        alias = recorder.alias_of(leaf)
        storage = alias.storage
        if storage.placeholder is not None or id(leaf) in direct or id(storage) in bases:
            continue
        is_cut = not leaf.requires_grad and id(storage) in needing
        base, _ = _base(recorder, storage)
        is_base = alias is base and not (is_cut or recorder.lineage_of(leaf).above is not None)
        if is_base or (id(storage) not in shared and is_dense(alias.value)):
            position = direct[id(leaf)] = results.add(_laid_out(recorder, alias), leaf)
            if alias is base:
                bases.setdefault(id(storage), position)
    seen: dict[int, int] = {}
    held = {id(each) for each in recorder.held}
    views = _plain_views(recorder, leaves)
    for position, output in enumerate(leaves):
        if not isinstance(output, torch.Tensor):
            results.outputs.append(Literal(output))
        elif id(output) in direct:
            results.outputs.append(Computed(direct[id(output)], is_number=id(output) in held))
        elif id(output) in seen:
            results.outputs.append(Repeated(seen[id(output)]))
        else:
            seen[id(output)] = position
            results.outputs.append(_view_output(recorder, table, output, bases, results, views))


_Views: TypeAlias = "dict[int, tuple[int, Lineage]]"


def _plain_views(recorder: Recorder, leaves: Sequence[object]) -> _Views:
    """The outputs that may lie on the way of gradients of views of theirs."""
    found: _Views = {}
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and _is_plain(lineage := recorder.lineage_of(leaf)):
            found.setdefault(id(leaf), (position, lineage))
    return found


def _is_plain(lineage: Lineage) -> bool:
    is_followed = lineage.detached is Detached.NOT and lineage.followed is Followed.ALWAYS
    return is_followed and not lineage.restrided


def _within(recorder: Recorder, tensor: torch.Tensor, views: _Views) -> WithinOutput | None:
    """The nearest output, between the tensor's root and itself, of which it is a view; none where
    what they look at was written to since, and autograd takes the view anew, from its base."""
    alias, lineage = recorder.alias_of(tensor), recorder.lineage_of(tensor)
    if lineage.known_at != alias.storage.version or not _is_plain(lineage):
        return None
    above = lineage.above
    while above is not None and above is not lineage.root:
        output, other = views.get(id(above), (None, lineage))
        if output is not None:
            start = recorder.alias_of(above)
            steps = _replayed(alias, start)
            if not has_static_sizes(start.value) or may_overlap(start.value):
                steps = alias.steps_from(start) or (_SAME,)
            of_many = lineage.of_many and not other.of_many
            return WithinOutput(output, _geometry(tensor, start.value), steps, of_many)
        above = recorder.lineage_of(above).above
    return None


def _shared_storages(recorder: Recorder, tensors: Sequence[torch.Tensor]) -> set[int]:
    """Storages that several different output tensors look at."""
    seen: dict[int, int] = {}
    shared: set[int] = set()
    for tensor in tensors:
        storage = id(recorder.alias_of(tensor).storage)
        if seen.setdefault(storage, id(tensor)) != id(tensor):
            shared.add(storage)
    return shared


def _laid_out(recorder: Recorder, alias: Alias) -> fx.Node:
    with recorder.emitting(alias.meta):
        return with_layout(recorder, read(recorder, alias), alias.value)


_SAME = ViewStep(torch.ops.aten.alias.default)
"""A view of everything."""


def _view_output(
    recorder: Recorder,
    table: InputTable,
    tensor: torch.Tensor,
    bases: dict[int, int],
    results: Results,
    views: _Views,
) -> OutputSource:
    itself = table.index_of(tensor)
    if itself is not None:
        return InputItself(itself)
    alias = recorder.alias_of(tensor)
    storage, lineage = alias.storage, recorder.lineage_of(tensor)
    owner = table.index_of(lineage.root)
    changed = storage.version or storage.counted
    if tensor.requires_grad and changed and _is_fragile(lineage):
        raise AtenTraceError(
            "it returns a view that autograd lets nobody use, since what it looks at was written to"
        )
    if tensor.requires_grad and (lineage.of_leaf or (owner is not None and tensor.is_leaf)):
        raise AtenTraceError("the program lets a view need gradients of its own")
    if tensor.requires_grad and lineage.detached is not Detached.NOT:
        raise AtenTraceError(
            "it returns a detached view that was written to and has gradients of its own, apart"
            " from those of the memory it looks at"
        )
    if tensor.requires_grad and lineage.restrided:
        raise AtenTraceError(
            "it returns as_strided of a view, whose gradient stays within that view",
            hint="use the view operators that say the same: narrow, select, unfold",
        )
    if owner is not None:
        start = table.alias_at_start(lineage.root)
        assert start is not None
        geometry, steps = _geometry(tensor, start.value), _replayed(alias, start)
        shape_known = has_static_sizes(start.value)
        if shape_known and may_overlap(start.value):
            # By as_strided, elements that share memory would get their gradients' mean.
            steps = alias.steps_from(start) or (_SAME,)
        many = lineage.of_many and lineage.detached is Detached.NOT
        within = _within(recorder, tensor, views)
        early = lineage.known_at < storage.version
        return InputView(
            *(owner, geometry, steps, lineage.detached, lineage.followed, many, within, early)
        )
    base, owning = _base(recorder, storage)
    if id(storage) not in bases:
        bases[id(storage)] = results.add(_laid_out(recorder, base), owning)
    if tensor.requires_grad and (storage.reshaped or not owning.requires_grad):
        raise AtenTraceError(
            "it returns a view of a tensor whose geometry it changes, under gradients"
        )
    detached = owning.requires_grad and not tensor.requires_grad
    geometry, steps = _geometry(tensor, base.value), _replayed(alias, base)
    within = None if detached else _within(recorder, tensor, views)
    if steps is not None and storage.turned is not None and not alias.is_below(base):
        raise AtenTraceError("it returns a view of other bits of a tensor that it turned since")
    return ResultView(
        bases[id(storage)],
        geometry,
        steps,
        detached,
        is_whole=alias is base,
        followed=lineage.followed,
        of_many=lineage.of_many and not detached,
        within=within,
    )


def _is_fragile(lineage: Lineage) -> bool:
    """Whether autograd refuses to follow the view once its base was written to."""
    return lineage.of_many or lineage.followed is not Followed.ALWAYS


def _base(recorder: Recorder, storage: Storage) -> tuple[Alias, torch.Tensor]:
    """Of what the views are, and the tensor that it is."""
    if storage.turned is not None:
        return recorder.alias_of(storage.turned), storage.turned
    assert storage.base is not None
    return storage.base, storage.base.value


def _geometry(tensor: torch.Tensor, base: FakeTensor) -> Geometry:
    offset = cast(int, tensor.storage_offset() - base.storage_offset())
    return Geometry(tuple(tensor.shape), tensor.stride(), offset, tensor.dtype)


def _replayed(alias: Alias, start: Alias) -> tuple[ViewStep, ...] | None:
    steps = alias.steps_from(start)
    return steps if any(step.op in _REINTERPRETING for step in steps) else None


def _add_mutations(recorder: Recorder, table: InputTable, results: Results) -> None:
    placeholders = recorder.graph.find_nodes(op="placeholder")
    for index in sorted(table.written):
        base = recorder.alias_of(table.values[index])
        while base.parent is not None:
            base = base.parent
        node = read(recorder, base)
        # A leaf that is given what it holds is written to all the same: autograd then raises.
        if node is not placeholders[index] or table.written[index]:
            position = results.add(node, table.values[index])
            counted = index not in table.uncounted
            results.mutations.append(Mutation(index, position, table.written[index], counted))
    for index, value in enumerate(table.values):
        original = placeholders[index].meta["val"]
        if original is not value and not (
            value.shape == original.shape and same_strides(value, original)
        ):
            results.metadata.append(MetadataMutation(index, _geometry(value, original)))


def separate(recorder: Recorder, nodes: list[fx.Node], mutations: Sequence[Mutation]) -> None:
    """Copy results that would share memory with an input or with each other.

    The caller owns what it gets, and copies into inputs must not change values still to be read.
    """
    written = {mutation.input for mutation in mutations}
    placeholders = {n: i for i, n in enumerate(recorder.graph.find_nodes(op="placeholder"))}
    copied_back = {mutation.result for mutation in mutations}
    taken: set[fx.Node] = set()
    for position, node in enumerate(nodes):
        root = storage_root(node)
        index = placeholders.get(root)
        if position in copied_back:
            clash = index is not None and index in written
        else:
            clash = index is not None or root in taken
            taken.add(root)
        if clash:
            meta = {key: value for key, value in node.meta.items() if key != "val"}
            with recorder.emitting(meta):
                copy = recorder.apply(aten.clone.default, (node,), {})
            nodes[position] = copy
            taken.add(copy)
