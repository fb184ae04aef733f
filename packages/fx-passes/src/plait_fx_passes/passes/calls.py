"""New calls in a graph that a pass changes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

from plait_fx_passes.passes.base import PassContext, made_by
from plait_fx_passes.verifier import recompute


def call_before(
    context: PassContext,
    node: fx.Node,
    op: OpOverload,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument] | None = None,
    value: object = None,
) -> fx.Node:
    """A new call before `node`, at its user's line, which says that the running pass made it; with
    a fake value, if one is given.

    Raises what the operator raises on fake tensors; the graph is then as it was.
    """
    assert context.fake_mode is not None, "a graph with tensors has fake ones"
    name = op._schema.name.split("::")[1]
    with context.graph.inserting_before(node):
        made = context.graph.create_node(
            "call_function", op, tuple(args), dict(kwargs or {}), name=name
        )
    made.meta = {key: value for key, value in node.meta.items() if key != "val"}
    made.meta |= made_by(context.running, node)
    try:
        made.meta["val"] = recompute(context.fake_mode, made) if value is None else value
    except Exception:
        context.graph.erase_node(made)
        raise
    return made


class Calls:
    """New calls before a node in the name of a rule, which may be taken back.

    Args:
        context: the pass's.
        node: what the calls come before.
        rule: what made them, for reports.
    """

    def __init__(self, context: PassContext, node: fx.Node, rule: str) -> None:
        self._context, self._node, self._rule = context, node, rule
        self._made: list[fx.Node] = []

    def __call__(self, op: OpOverload, *args: Argument, **kwargs: Argument) -> fx.Node:
        """Make one."""
        return self._noted(call_before(self._context, self._node, op, args, kwargs))

    def known(self, value: object, op: OpOverload, *args: Argument) -> fx.Node:
        """Make one whose fake value is known."""
        return self._noted(call_before(self._context, self._node, op, args, value=value))

    def _noted(self, made: fx.Node) -> fx.Node:
        made.meta["rule"] = self._rule
        self._made.append(made)
        return made

    def part(self, node: fx.Node, index: int) -> fx.Node:
        """One of a call's results."""
        with self._context.graph.inserting_before(self._node):
            made = self._context.graph.call_function(operator.getitem, (node, index))
        made.meta = {**node.meta, "val": node.meta["val"][index]}
        self._made.append(made)
        return made

    def drop_unused(self) -> None:
        """Take back those that nothing uses."""
        kept = []
        for each in reversed(self._made):
            if each.users:
                kept.append(each)
            else:
                self._context.graph.erase_node(each)
        self._made = kept[::-1]

    def erase(self) -> None:
        """Take all back, which nothing uses."""
        for each in reversed(self._made):
            self._context.graph.erase_node(each)
