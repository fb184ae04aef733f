"""The autograd nodes of a program whose results come from different inputs, or from one another.

In eager a backward from some results comes to the inputs that these come from, and to no others:
hooks of others are not called, and what others come from is not run, nor freed. A node leads to all
of its inputs, so results from different inputs are of different nodes. These share one call of the
compiled forward, and what it saved; and where several of them run in one pass of autograd, what
they have in common runs once: each hands over, as they come, the gradients of inputs that no other
leads to which is still to run, and the last one those of all that it leads to.

A node whose gradients pass outputs of the program leads to these, too. As long as nobody looks
there, it hands on gradients past them, and nothing to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import ref

import torch

from plait_fx_passes.training.calls import Call, Turn
from plait_fx_passes.training.differentiating import Differentiator
from plait_fx_passes.training.groups import Group
from plait_fx_passes.training.looking import (
    ANYWHERE,
    asks_for_some,
    is_looked_at,
    note_hooks,
    shown,
)
from plait_fx_passes.training.remembering import Cuts
from plait_utils.forks import new_lock

Tangents: TypeAlias = "tuple[torch.Tensor | None, ...]"
MakeOutput: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], torch.Tensor]


def applied(node: type[torch.autograd.Function]) -> Callable[..., Any]:
    """What ``node.apply`` ends in. The rest of it is for nodes that know functorch's transforms."""
    apply: Callable[..., Any] = super(torch.autograd.Function, node).apply  # type: ignore[misc]  # in C
    return apply


class Nodes:
    """Makes the nodes of calls.

    Args:
        groups: one for each node.
        forward: that of a node for all of them.
        differentiate: computes gradients for them.
        differentiable: the results that need gradients, in the order of their tangents.
        outputs: what makes, of the inputs and the results, each output that gradients pass.
        tangents_of: for each of these the tangent of the result that it shows, if it does.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        forward: Callable[..., tuple[torch.Tensor, ...]],
        differentiate: Differentiator,
        differentiable: Sequence[int],
        outputs: Sequence[MakeOutput] = (),
        tangents_of: Sequence[int | None] = (),
    ) -> None:
        self.differentiate = differentiate
        self.count = len(differentiable)
        self.lock = new_lock()
        self._groups = groups
        self._keep = _keeping(forward)
        self._places = [[differentiable[n] for n in group.tangents] for group in groups]
        self.outputs = outputs
        self._tangents_of = tangents_of
        ends = set(tangents_of)
        self._is_passed = [not ends.isdisjoint(group.tangents) for group in groups]
        self._given_too: set[int] = set()

    def call(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Call | None]:
        """The results, those that need gradients with the nodes of their groups, then the outputs
        that gradients pass, and what the nodes share; None where gradients are off."""
        results: list[torch.Tensor] = []
        keeper = self._keep(results, *inputs)
        if keeper.grad_fn is None:
            return [*results, *(make(inputs, results) for make in self.outputs)], None
        call = Call(keeper)
        outputs: dict[int, torch.Tensor] = {}
        for group, places in zip(self._groups, self._places, strict=True):
            for n in group.passed:
                if n not in outputs:
                    outputs[n] = self.outputs[n](inputs, results)
            ends = [*(inputs[n] for n, _ in group.edges), *(outputs[n] for n in group.passed)]
            if group.passed:
                ends.append(ANYWHERE)
            # What the keeper has saved belongs to no node.
            values = tuple([results[n].detach() for n in places])
            made = _join(self, call, group, values, *ends)
            for place, each in zip(places, made, strict=True):
                results[place] = each
            # The nodes hold the call, so the call does not hold them.
            node = made[0].grad_fn
            call.nodes.append(_no_node if node is None else ref(node))
        found = [outputs[n] for n in range(len(outputs))]
        call.passed = [shown(each) for each in found]
        return [*results, *found], call

    def handed_over(self, group: Group, waiting: Sequence[int]) -> frozenset[int]:
        """The inputs whose gradients a node hands over while others are still to run."""
        return group.inputs.difference(*(self._groups[n].inputs for n in waiting))

    def unlikely(self) -> list[int]:
        """The nodes that others lead to, as gradients pass their results, and which have not been
        given one of their own so far: they run in any case."""
        passed = [number for number, is_passed in enumerate(self._is_passed) if is_passed]
        return [number for number in passed if number not in self._given_too]

    def note_given(self, group: Group) -> None:
        """A node that others lead to was given a gradient of its own."""
        if self._is_passed[group.number]:
            self._given_too.add(group.number)

    def stops(self, places: Sequence[int]) -> frozenset[int]:
        """The tangents of the results that these outputs show."""
        return frozenset(n for n in (self._tangents_of[each] for each in places) if n is not None)


class CompiledProgram(torch.autograd.Function):
    """The node of one group."""

    @staticmethod
    def forward(
        ctx: Any,
        nodes: Nodes,
        call: Call,
        group: Group,
        values: tuple[torch.Tensor, ...],
        *ends: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.nodes, ctx.call, ctx.group = nodes, call, group
        return values

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Tangents:
        nodes: Nodes = ctx.nodes
        call: Call = ctx.call
        group: Group = ctx.group
        is_given = any(each is not None for each in given)
        looked = _looked_at(ctx, call, group) if is_given and group.passed else ()
        past = (None,) * len(given) if looked else given
        with nodes.lock:
            turn = call.gather(group, past, nodes.count, nodes.unlikely)
            if is_given:
                nodes.note_given(group)
        found = _past(nodes, call, group, turn)
        if looked:
            unfinished = not turn.is_last
            found = _sums(found, _until(nodes, call, group, given, looked, unfinished))
        if turn.is_last:
            nodes.differentiate.finish(call)
            call.let_go()
        return (*_FOR_OTHERS, *found)


def _past(nodes: Nodes, call: Call, group: Group, turn: Turn) -> Tangents:
    """The gradients of a node's inputs, past outputs that nobody looks at."""
    behind = (None,) * (len(group.passed) + 1) if group.passed else ()
    inputs = nodes.handed_over(group, turn.waiting)
    if not inputs or all(each is None for each in turn.tangents):
        return (*[None] * len(group.edges), *behind)
    unfinished = not turn.is_last
    found = nodes.differentiate(call, *turn.tangents, inputs=inputs, unfinished=unfinished)
    own = [found[place] if n in inputs else None for place, n in group.edges]
    return (*own, *behind)


def _until(
    nodes: Nodes,
    call: Call,
    group: Group,
    given: Sequence[torch.Tensor | None],
    places: tuple[int, ...],
    unfinished: bool,
) -> Tangents:
    """The gradients of a node's own results as far as these outputs, and of what does not come
    through them, of the inputs."""
    tangents: list[torch.Tensor | None] = [None] * nodes.count
    for n, each in zip(group.tangents, given, strict=True):
        tangents[n] = each
    followed = torch.is_grad_enabled()
    cuts = Cuts(places, tuple(call.passed[n].tensor() if followed else None for n in places))
    stops = nodes.stops(places)
    found = nodes.differentiate.until(call, tangents, cuts, stops, unfinished=unfinished)
    passed = dict(zip(places, found[len(found) - len(places) :], strict=True))
    own = [found[place] for place, _ in group.edges]
    return (*own, *(passed.get(n) for n in group.passed), None)


def _sums(one: Tangents, other: Tangents) -> Tangents:
    pairs = zip(one, other, strict=True)
    return tuple(b if a is None else a if b is None else a + b for a, b in pairs)


def _looked_at(ctx: Any, call: Call, group: Group) -> tuple[int, ...]:
    """The outputs that a node leads to, and at which somebody looks."""
    ends = ctx.next_functions
    asks = asks_for_some(ends[-1][0])
    nodes = [node for node, _ in ends[len(group.edges) : -1]]
    pairs = zip(group.passed, nodes, strict=True)
    return tuple(n for n, node in pairs if is_looked_at(call.passed[n], node, asks))


_FOR_OTHERS = (None,) * 4
"""Of the arguments before the inputs."""
_join = applied(CompiledProgram)
note_hooks(CompiledProgram)


def _keeping(
    forward: Callable[..., tuple[torch.Tensor, ...]],
) -> Callable[..., torch.Tensor]:
    """What runs the forward of a call, adds to a list what that returns, and returns what holds
    the tensors that it saves."""

    class Keeper(torch.autograd.Function):
        """Holds what is saved; no backward comes to it."""

        @staticmethod
        def forward(ctx: Any, results: list[torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
            results += forward(ctx, *given)
            return torch.empty(0)

        @staticmethod
        def backward(ctx: Any, *given: torch.Tensor | None) -> None:
            raise AssertionError("no result comes from it")

    return applied(Keeper)


def _no_node() -> None:
    """In the place of a reference to a node."""
