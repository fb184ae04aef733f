"""The autograd nodes of a program whose results come from different inputs.

In eager a backward from some results comes to the inputs that these come from, and to no others:
hooks of others are not called, and what others come from is not run, nor freed. A node leads to all
of its inputs, so results from different inputs are of different nodes. These share one call of the
compiled forward, and what it saved; and where several of them run in one pass of autograd, what
they have in common runs once: each hands over, as they come, the gradients of inputs that no other
leads to which is still to run, and the last one those of all that it leads to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from weakref import ref

import torch

from plait_fx_passes.training.again import Before
from plait_fx_passes.training.flow import Flow
from plait_fx_passes.training.freeing import Left
from plait_fx_passes.training.watching import Watched
from plait_utils import dataclass

Tangents: TypeAlias = "tuple[torch.Tensor | None, ...]"

_running_pass = torch._C._current_graph_task_id
_will_run = torch._C._will_engine_execute_node
_OUTSIDE = -1
"""The number of the pass where none runs."""


@dataclass(frozen=True, slots=True)
class Group:
    """Results whose gradients reach the same inputs: their tangents, by order, and these inputs,
    by placeholder; ``edges`` are the places, among all inputs and the copies behind them, that its
    node leads to, each with the input that it belongs to."""

    number: int
    tangents: tuple[int, ...]
    inputs: frozenset[int]
    edges: tuple[tuple[int, int], ...]


def groups_of(flow: Flow, copies: Mapping[int, int]) -> tuple[Group, ...]:
    """The groups, those that reach most first: nodes that are made first run last.

    Args:
        flow: of the program.
        copies: inputs of which a node gets a copy, too, each with the place of that.
    """
    tangents: dict[frozenset[int], list[int]] = {}
    for tangent, inputs in enumerate(flow.reached):
        tangents.setdefault(inputs, []).append(tangent)
    order = sorted(tangents, key=lambda inputs: (-len(inputs), tangents[inputs]))
    return tuple(
        Group(
            number,
            tuple(tangents[inputs]),
            inputs,
            tuple((n, n) for n in sorted(inputs))
            + tuple((copies[n], n) for n in sorted(inputs & copies.keys())),
        )
        for number, inputs in enumerate(order)
    )


class Call:
    """What the nodes of one call of a program share: what one node for all of them would hold.

    What the forward saves, a node holds that no backward comes to; ``keeper`` is its only result.
    """

    def __init__(self, keeper: torch.Tensor) -> None:
        made: Any = keeper.grad_fn
        self.before: Before | None = made.before
        self.left: Left | None = None
        self.watched: Watched | None = made.watched
        made.before = made.watched = None
        self.keeper: torch.Tensor | None = keeper
        self.nodes: list[Callable[[], Any]] = []
        self._edges: tuple[tuple[Any, int], ...] = ()
        self._passes: dict[int, _Pass] = {}

    @property
    def saved_tensors(self) -> tuple[torch.Tensor, ...]:
        """What the forward has saved, until a backward frees some of it."""
        found: tuple[torch.Tensor, ...] = self._holder.saved_tensors
        return found

    @property
    def _raw_saved_tensors(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._holder._raw_saved_tensors
        return found

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """What the inputs of all nodes come from."""
        return self._edges if self.keeper is None else self._holder.next_functions

    @property
    def _holder(self) -> Any:
        assert self.keeper is not None, "what is left after a backward is held elsewhere"
        return self.keeper.grad_fn

    def let_go(self) -> None:
        """Free what the forward has saved, once what is left of it is held by ``left``."""
        if self.keeper is not None and self.left is not None:
            self._edges = self._holder.next_functions
            self.keeper = None

    def gather(self, group: Group, given: Sequence[torch.Tensor | None], count: int) -> _Pass:
        """A node runs, and is given these: what has come to all nodes of the call by now."""
        number = _running_pass()
        here = self._passes.setdefault(number, _Pass(count))
        for tangent, each in zip(group.tangents, given, strict=True):
            here.tangents[tangent] = each
        here.done.add(group.number)
        here.waiting = [] if number == _OUTSIDE else self._waiting(here.done)
        if not here.waiting:
            del self._passes[number]
        return here

    def _waiting(self, done: set[int]) -> list[int]:
        nodes = [(number, node()) for number, node in enumerate(self.nodes) if number not in done]
        return [number for number, node in nodes if node is not None and _will_run(node)]


class _Pass:
    """What has come, in one pass of autograd, to the nodes of a call: the tangents, which of the
    nodes have run, and which are still to run."""

    def __init__(self, count: int) -> None:
        self.tangents: list[torch.Tensor | None] = [None] * count
        self.done: set[int] = set()
        self.waiting: list[int] = []


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
    """

    def __init__(
        self,
        groups: Sequence[Group],
        forward: Callable[..., tuple[torch.Tensor, ...]],
        differentiate: Callable[..., Tangents],
        differentiable: Sequence[int],
    ) -> None:
        self.differentiate = differentiate
        self.count = len(differentiable)
        self.lock = threading.Lock()
        self._groups = groups
        self._keep = _keeping(forward)
        self._places = [[differentiable[n] for n in group.tangents] for group in groups]

    def call(self, inputs: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], Call | None]:
        """The results, those that need gradients with the nodes of their groups, and what these
        share; None where gradients are off."""
        results: list[torch.Tensor] = []
        keeper = self._keep(results, *inputs)
        if keeper.grad_fn is None:
            return results, None
        call = Call(keeper)
        for group, places in zip(self._groups, self._places, strict=True):
            # What the keeper has saved belongs to no node.
            values = tuple([results[n].detach() for n in places])
            made = _join(self, call, group, values, *[inputs[n] for n, _ in group.edges])
            for place, each in zip(places, made, strict=True):
                results[place] = each
            # The nodes hold the call, so the call does not hold them.
            node = made[0].grad_fn
            call.nodes.append(_no_node if node is None else ref(node))
        return results, call

    def handed_over(self, group: Group, waiting: Sequence[int]) -> frozenset[int]:
        """The inputs whose gradients a node hands over while others are still to run."""
        return group.inputs.difference(*(self._groups[n].inputs for n in waiting))


class CompiledProgram(torch.autograd.Function):
    """The node of one group."""

    @staticmethod
    def forward(
        ctx: Any,
        nodes: Nodes,
        call: Call,
        group: Group,
        values: tuple[torch.Tensor, ...],
        *inputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.nodes, ctx.call, ctx.group = nodes, call, group
        return values

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor | None) -> Tangents:
        nodes: Nodes = ctx.nodes
        call: Call = ctx.call
        group: Group = ctx.group
        with nodes.lock:
            here = call.gather(group, given, nodes.count)
        inputs = nodes.handed_over(group, here.waiting)
        if not inputs:
            return (*_FOR_OTHERS, *[None] * len(group.edges))
        found = nodes.differentiate(
            call, *here.tangents, inputs=inputs, unfinished=bool(here.waiting)
        )
        call.let_go()
        own = [found[place] if n in inputs else None for place, n in group.edges]
        return (*_FOR_OTHERS, *own)


_FOR_OTHERS = (None,) * 4
"""Of the arguments before the inputs."""
_join = applied(CompiledProgram)


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
