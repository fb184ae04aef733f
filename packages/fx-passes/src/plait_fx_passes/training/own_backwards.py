"""Hooks and functions of the user's in a program: which nodes bring them, and where autograd runs
them.

A compiled program is one node of autograd. What comes to a tensor in it by several ways, as through
the result and, in a second backward, through the first gradients, meets only at its inputs. For
autograd's own formulas that is the same; a hook or function that does more with gradients than
weigh them is to get their sum, so the nodes that bring it run as they are in eager, and the program
is compiled in pieces around them (:func:`plait_fx_passes.in_pieces`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointFunction

from plait_fx_passes.errors import AtenTraceError
from plait_fx_passes.training.functions import nodes_behind
from plait_fx_passes.training.linear import bent_by
from plait_fx_passes.training.lines import line_of
from plait_fx_passes.training.provenance import Provenance
from plait_fx_passes.training.waypoints import WaypointError

_HOOKING = frozenset({"register_hook", "hook_inputs", "hook_outputs"})
"""What brings hooks, by name: a method of tensors, and what tracers call."""
_PLAIN = ("aten", "prims", "prim")
"""The namespaces of operators whose gradients are formulas of autograd."""
_node_now: Any = torch._C._current_autograd_node
_pass_now: Any = torch._C._current_graph_task_id


class OwnBackwards:
    """The hooks and functions that a program brings, noted while it runs on fake tensors."""

    def __init__(self, gm: fx.GraphModule, provenance: Provenance) -> None:
        self._gm = gm
        self._provenance = provenance
        self._bringing = frozenset(node for node in gm.graph.nodes if _may_bring(gm, node))
        # By the node of autograd that calls it: the nodes of the program that bring it.
        self._brought: dict[Node, frozenset[fx.Node]] = {}
        self._run: dict[fx.Node, Node | None] = {}
        self._values: Mapping[fx.Node, object] = {}
        self._seen: set[Node] = set()
        self._makers: dict[int, fx.Node] = {}
        self._hooks: dict[Node, int] = {}
        self._pass: int | None = None
        self._last: Node | None = None

    def look(self, node: fx.Node, values: Mapping[fx.Node, object]) -> None:
        """Note what a node has brought, after the provenance has."""
        if not self._bringing:
            return
        self._values = values
        tensors = list(_tensors(values[node]))
        for tensor in tensors:
            self._makers.setdefault(id(tensor), node)
        for given in node.all_input_nodes:
            tensors += _tensors(values[given])
        steps = nodes_behind(tensors, self._seen)
        self._seen |= steps
        if node in self._bringing:
            is_hooked = _hooks_inside(self._gm, node)
            brings = _brings_inside(self._gm, node)
            for step in steps:
                if is_hooked or _is_own(step, brings=brings):
                    self._brought[step] = frozenset((node,))
            for tensor in tensors:
                self._note_hooks(tensor, node)

    def _note_hooks(self, tensor: torch.Tensor, node: fx.Node) -> None:
        count = len(tensor._backward_hooks or ())
        behind = tensor.grad_fn
        if behind is None or count == self._hooks.get(behind, 0):
            return
        self._hooks[behind] = count
        first = self._makers.get(id(tensor))
        maker = None if first is None else self._provenance.last(tensor, [first])
        known = self._brought.get(behind)
        is_lost = maker is None or (known is not None and not known)
        own = () if is_lost or maker is None else (*(known or ()), maker, node)
        self._brought[behind] = frozenset(own)

    def note(self, node: fx.Node) -> None:
        """Note what autograd computes a node of the joint graph in."""
        if not self._brought:
            return
        now = _pass_now()
        if self._pass is None:
            self._pass = now
        if now == self._pass:
            self._last = _node_now()
        if now != self._pass or self._last in self._brought:
            self._run[node] = self._last  # also in a pass within a function of the user's

    def refuse_bent(
        self, tangents: Iterable[fx.Node], gradients: Iterable[fx.Node], graph: fx.Graph
    ) -> None:
        """Raise WaypointError where one of them is not linear in the gradients that it gets."""
        if self._run:
            self._refuse(bent_by(tangents, gradients, graph, self._run))

    def refuse_hooks_on(self, tensor: torch.Tensor) -> None:
        """Raise WaypointError for hooks that the program registers on what it returns."""
        self._refuse([tensor.grad_fn])

    def _refuse(self, found: Iterable[Node | None]) -> None:
        nodes: set[fx.Node] = set()
        for each in found:
            own = self._brought.get(each) if each is not None else None
            if not own:
                raise AtenTraceError(
                    "a hook or function of its own does more with gradients than weigh them, and "
                    "what brings it cannot run by itself"
                )
            nodes |= own
        if nodes:
            lines = dict.fromkeys(map(line_of, sorted(nodes)))
            names = [node.name for node in self._with_followers(nodes)]
            raise WaypointError(nodes=names, where="; ".join(filter(None, lines)) or None)

    def _with_followers(self, nodes: Iterable[fx.Node]) -> set[fx.Node]:
        """The nodes and what uses other values of theirs than tensors, as handles of hooks."""
        waiting, found = list(nodes), set(nodes)
        while waiting:
            node = waiting.pop()
            if isinstance(self._values[node], torch.Tensor):
                continue
            users = [user for user in node.users if user.op != "output" and user not in found]
            found.update(users)
            waiting += users
        return found


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        yield from (each for each in tree_leaves(value) if isinstance(each, torch.Tensor))


def _may_bring(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call may bring hooks or functions of the user's."""
    target: Any = node.target
    if node.op == "call_method":
        return target in _HOOKING
    if node.op == "call_module":
        return not _is_of_torch(type(gm.get_submodule(target)))
    if node.op != "call_function" or isinstance(target, BuiltinFunctionType):
        return False
    if isinstance(target, OpOverload):
        return target.namespace not in _PLAIN
    if isinstance(target, OpOverloadPacket):
        return target._qualified_op_name.split("::")[0] not in _PLAIN
    if isinstance(target, FunctionType):
        return not _is_of_torch(target) or any(_modules_in(gm, node))
    return True


def _is_of_torch(named: Any) -> bool:
    return str(named.__module__).startswith("torch.")


def _modules_in(gm: fx.GraphModule, node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that a call is given, or calls."""
    names = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    if node.op == "call_module":
        names.append(str(node.target))
    for name in names:
        found: Any = gm
        for part in name.split("."):
            found = getattr(found, part, None)
        if isinstance(found, fx.GraphModule):
            yield found


def _hooks_inside(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a graph that a call is given registers hooks; a hook's own does not count."""
    if _is_hooking(node):
        return False
    return any(
        _is_hooking(each) or _hooks_inside(inner, each)
        for inner in _modules_in(gm, node)
        for each in inner.graph.nodes
    )


def _is_hooking(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", node.target) in _HOOKING


def _brings_inside(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a graph that a call is given brings hooks or functions."""
    return any(
        _may_bring(inner, each) or _brings_inside(inner, each)
        for inner in _modules_in(gm, node)
        for each in inner.graph.nodes
    )


def _is_own(node: Any, *, brings: bool) -> bool:
    """Whether a node of autograd calls a function that is the user's, or may call such: plait's
    own, as for loops in a graph, call the graphs that they are given, which may bring some."""
    if not isinstance(node, BackwardCFunction):
        return False
    called = getattr(node, "_forward_cls", None)
    if str(getattr(called, "__module__", "")).startswith("plait_"):
        return brings
    return called is not CheckpointFunction
