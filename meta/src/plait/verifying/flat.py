"""Compiled code of flat graphs against torch's kernels, call by call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from plait.record import Runner
from plait.verifying.effects import call_with_effects, calls_operators
from plait.verifying.once import Calls, active_calls, answering, recording
from plait.verifying.states import RandomStates
from plait.verifying.told import Difference, Verification
from plait_fx_passes.tools import difference, first_difference

if TYPE_CHECKING:
    from plait_fx_passes import AtenGraph


class FlatVerifier:
    """Compares the first calls of a flat graph's code with its ATen kernels.

    Args:
        limit: how many calls.
        told: keeps what is found.
        generate: makes code for another graph, to find the node at fault.
    """

    def __init__(
        self, limit: int, told: Verification, generate: Callable[[AtenGraph], Runner]
    ) -> None:
        self._limit = limit
        self._told = told
        self._generate = generate

    def wrap(self, run: Runner, aten: AtenGraph, kind: str) -> Runner:
        """`run`, which returns the kernels' results where its own are wrong, and ever after.

        `kind` says what the graph is: "forward " or "backward " in training, else nothing. A
        backward's calls are counted here, others where the whole graph is compared: that runs
        the code twice, once on copies.
        """
        if call_with_effects(aten.graph) is not None:
            return run
        once = calls_operators(aten.graph)
        is_backward = kind.startswith("backward")
        left = self._limit if is_backward else 2 * self._limit
        kernels: Runner | None = None
        is_wrong = False

        def verified(*inputs: Any) -> Any:
            nonlocal left, kernels, is_wrong
            if left <= 0 and not is_wrong:
                return run(*inputs)
            kernels = kernels or aten.module()
            if is_wrong:
                return kernels(*inputs)
            left -= 1
            calls = Calls() if once else None
            wanted, exact = _by_kernels(kernels, inputs, calls)
            is_part = active_calls() is not None  # of a call from which operators are answered
            got = run(*inputs) if is_part else _answered(run, inputs, calls)
            if is_backward:
                self._told.compared()
            names = [f"{kind}result {n}" for n in range(len(wanted))]
            found = first_difference(names, got, wanted, exact)
            if found is None:
                return got
            is_wrong = True
            node = None if once else self._first_node(aten, inputs)
            self._told.tell(Difference(*found, node or f"the {kind}results"))
            return wanted

        return verified

    def _first_node(self, aten: AtenGraph, inputs: Sequence[torch.Tensor]) -> str | None:
        """The first node whose compiled value differs, if nodes show it that are looked at.

        All are looked at together first. Code that is right then, because nothing is fused any
        more, is looked at with ever fewer nodes.
        """
        from plait_fx_passes.tools import format_node

        states = RandomStates()
        nodes, values = _values(aten, inputs)
        states.restore()
        wrong = self._wrong(aten, nodes, values, inputs)
        found = wrong[0] if wrong else self._shortest(aten, nodes, values, inputs, states)
        states.restore()
        return None if found is None else format_node(nodes[found])

    def _wrong(
        self,
        aten: AtenGraph,
        nodes: Sequence[fx.Node],
        values: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
    ) -> list[int]:
        """Which of the nodes have wrong values in a program that returns just these."""
        from plait_fx_passes.tools import with_results

        try:
            got = self._generate(with_results(aten, nodes))(*inputs)
        except Exception:  # the code is known to be wrong; this is about where
            return []
        return [
            n
            for n, (mine, value) in enumerate(zip(got, values, strict=True))
            if difference(mine, value, None) is not None
        ]

    def _shortest(
        self,
        aten: AtenGraph,
        nodes: Sequence[fx.Node],
        values: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        states: RandomStates,
    ) -> int | None:
        """The first node with which a program that computes it alone goes wrong, by bisection."""

        def is_wrong(n: int) -> bool:
            states.restore()
            return bool(self._wrong(aten, nodes[n : n + 1], values[n : n + 1], inputs))

        if not nodes or not is_wrong(len(nodes) - 1):
            return None
        good, bad = -1, len(nodes) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if is_wrong(middle) else (middle, bad)
        return bad


def _by_kernels(kernels: Runner, inputs: Sequence[Any], calls: Calls | None) -> tuple[Any, Any]:
    """What torch's kernels compute, and the same in float64 where that is not left to chance.

    Operators that are not torch's own are called for real, and kept in `calls`, but where this is
    part of a call that has called them already.
    """
    states, before = RandomStates(), active_calls()
    try:
        if calls is None:
            wanted = kernels(*inputs)
        elif before is not None:
            calls.made += before.made
            wanted = _answered(kernels, inputs, calls)
        else:
            with recording(calls):
                wanted = kernels(*inputs)
        if states.have_moved():
            return wanted, None
        if calls is None:
            return wanted, wide_results(kernels, inputs)
        with answering(calls, wide=True):
            return wanted, wide_results(kernels, inputs)
    finally:
        states.restore()


def _answered(run: Runner, inputs: Sequence[Any], calls: Calls | None) -> Any:
    if calls is None:
        return run(*inputs)
    with answering(calls):
        return run(*inputs)


def _values(
    aten: AtenGraph, inputs: Sequence[torch.Tensor]
) -> tuple[list[fx.Node], list[torch.Tensor]]:
    """The calls that make a tensor of their own, and what torch's kernels make."""
    from plait_fx_passes.tools import makes_own_tensor, with_results

    nodes = [node for node in aten.graph.nodes if makes_own_tensor(node)]
    return nodes, list(with_results(aten, nodes).module()(*inputs))


def wide_results(run: Runner, inputs: Sequence[Any]) -> Any:
    """What `run` computes from the same numbers in float64; None where it does not take them."""
    try:
        return run(*[widened(each) for each in inputs])
    except Exception:  # dtypes that the program says itself need not go together
        return None


def widened(value: Any) -> Any:
    """Float tensors in float64, complex ones in complex128."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype.is_floating_point:
        return value.to(torch.float64)
    return value.to(torch.complex128) if value.dtype.is_complex else value
