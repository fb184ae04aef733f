"""Which results of a program belong to one node of autograd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plait_fx_passes.training.flow import Flow
from plait_fx_passes.training.passed import Passed
from plait_utils import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Results whose gradients reach the same inputs and pass the same outputs: their tangents, by
    order, these inputs, by placeholder, and the outputs, by their place among those that are
    passed; ``edges`` are the places, among all inputs and the copies behind them, that its node
    leads to, each with the input that it belongs to."""

    number: int
    tangents: tuple[int, ...]
    inputs: frozenset[int]
    passed: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]


def groups_of(
    flow: Flow, passed: Sequence[Passed], copies: Mapping[int, int], *, together: bool = False
) -> tuple[Group, ...]:
    """The groups, each after those whose results it passes; then those that reach most first:
    nodes that are made first run last.

    Args:
        flow: of the program.
        passed: the outputs that gradients pass.
        copies: inputs of which a node gets a copy, too, each with the place of that.
        together: whether one node has all results.
    """
    tangents: dict[tuple[frozenset[int], tuple[int, ...]], list[int]] = {}
    for tangent, inputs in enumerate(flow.reached):
        through = tuple(n for n, each in enumerate(passed) if tangent in each.tangents)
        reached = frozenset().union(*flow.reached) if together else inputs
        tangents.setdefault((reached, through), []).append(tangent)
    order = sorted(tangents, key=lambda kind: (len(kind[1]), -len(kind[0]), tangents[kind]))
    return tuple(
        Group(
            number,
            tuple(tangents[inputs, through]),
            inputs,
            through,
            tuple((n, n) for n in sorted(inputs))
            + tuple((copies[n], n) for n in sorted(inputs & copies.keys())),
        )
        for number, (inputs, through) in enumerate(order)
    )
