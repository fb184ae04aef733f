"""How far a graph had come when it failed, where it runs as it was captured."""

from __future__ import annotations

import linecache
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import torch
from torch import fx

from plait_bytecode_tracer.exceptions.user_lines import (
    node_at,
    original_traceback,
    with_user_lines,
)
from plait_bytecode_tracer.failing import (
    CHANGES,
    changes_unseen,
    is_change,
    is_fallible,
    is_opaque,
    is_pure,
    is_undone,
)
from plait_utils import dataclass
from plait_utils.wrappings import is_wrapper


@dataclass(frozen=True, slots=True)
class Progress:
    """The node at which the code of a graph module raised."""

    node: fx.Node
    values: Mapping[str, Any] = field(repr=False)
    """What the code held then, by the names of nodes; None for what it had let go of."""
    tail: types.TracebackType | None = field(repr=False)
    """The traceback inside of what the node calls."""

    def before(self) -> Iterator[fx.Node]:
        """The nodes that have run."""
        for node in self.node.graph.nodes:
            if node is self.node:
                return
            yield node


def progress_of(error: BaseException, module: fx.GraphModule) -> Progress | None:
    """Where the code of a module raised an error; None where it was not that code."""
    code = getattr(type(module).forward, "__code__", None)
    entry, found = original_traceback(error), None
    while entry is not None:
        if entry.tb_frame.f_code is code:
            found = entry
        entry = entry.tb_next
    if found is None:
        return None
    text = linecache.getline(found.tb_frame.f_code.co_filename, found.tb_lineno)
    node = node_at(text, module)
    if node is None:
        return None
    return Progress(node, dict(found.tb_frame.f_locals), with_user_lines(found.tb_next, module))


def is_undoable(progress: Progress, *, draws_again: bool) -> bool:
    """Whether the whole call may be made anew: nothing shows of what the graph has done.

    Args:
        progress: how far it came.
        draws_again: whether the random numbers that it drew can be drawn once more.
    """
    allowed = is_undone if draws_again else is_pure
    memory = memory_of_inputs(progress.node.graph.nodes)
    if not all(allowed(node) and not changes_inputs(node, memory) for node in progress.before()):
        return False
    node = progress.node
    halfway = is_fallible(node.target, node.args) or changes_unseen(node)
    return allowed(node) and not (halfway and changes_inputs(node, memory))


def memory_of_inputs(nodes: Iterable[fx.Node]) -> frozenset[int] | None:
    """The memory of the inputs among a graph's nodes, by what their fake tensors have.

    None if it is not known.
    """
    found = set()
    for node in nodes:
        if node.op in ("placeholder", "get_attr"):
            for tensor in _tensors(node.meta.get("val")):
                if is_wrapper(tensor) or tensor.layout is not torch.strided:
                    return None
                found.add(_memory(tensor))
    return frozenset(found)


def changes_inputs(node: fx.Node, memory: frozenset[int] | None) -> bool:
    """Whether a node may have changed tensors of the caller's, whose memory this is."""
    changed = changed_by(node)
    return bool(changed) and (memory is None or not memory.isdisjoint(memory_of(changed)))


def changed_by(node: fx.Node) -> list[fx.Node]:
    """Those that a node is given whose tensors it may have changed."""
    if node.op in ("placeholder", "output", "get_attr"):
        return []
    if is_opaque(node.target) or not is_undone(node):
        return node.all_input_nodes
    return _written_by(node)


def writes_to_inputs(graph: fx.Graph) -> bool:
    """Whether operators of a graph write to its inputs: torch's own tell by what they are called,
    and others by their schema."""
    memory = memory_of_inputs(graph.nodes)
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            schema = getattr(node.target, "_schema", None)
            is_mutable = schema is not None and schema.is_mutable
            written = node.all_input_nodes if is_mutable else _written_by(node)
            if written and (memory is None or not memory.isdisjoint(memory_of(written))):
                return True
    return False


def _written_by(node: fx.Node) -> list[fx.Node]:
    """Those that an operator is given to write to, by what it is called, and their versions."""
    given = node.all_input_nodes
    changed = [each for each in given if each.name in node.meta.get(CHANGES, ())]
    if is_change(node.target) or node.kwargs.get("inplace"):
        changed += _nodes(node.args[:1])
    if changes_unseen(node):
        statistics = "_norm" in str(getattr(node.target, "__name__", ""))
        changed += _nodes([node.args[1:3], node.kwargs]) if statistics else given
    return changed + _nodes(node.kwargs.get("out"))


def memory_of(nodes: Iterable[fx.Node]) -> frozenset[int]:
    """The memory of the tensors that nodes give, by what fake tensors have."""
    values = (node.meta.get("val") for node in nodes)
    return frozenset(
        _memory(tensor)
        for value in values
        for tensor in _tensors(value)
        if tensor.layout is torch.strided and not is_wrapper(tensor)
    )


def _nodes(arguments: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.node.map_arg(arguments, found.append)
    return found


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])
