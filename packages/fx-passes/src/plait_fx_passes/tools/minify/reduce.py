"""Delta debugging of graphs.

After A. Zeller, R. Hildebrandt, "Simplifying and isolating failure-inducing input", 2002: parts of
ever smaller size are left out, and whatever still fails is kept. A graph has more ways than a
text: what it returns can move forward, a node's value can become an input, a node can give way to
one of its own inputs, and sizes can shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from plait_fx_passes.aten_graph import AtenGraph
from plait_fx_passes.tools.minify.program import Program

Fails: TypeAlias = Callable[[fx.GraphModule, list[Any]], bool]


def minify(
    graph: AtenGraph | fx.GraphModule,
    inputs: Sequence[Any],
    fails: Fails,
    *,
    limit: int = 500,
) -> Program:
    """Cut a failing graph down.

    Args:
        graph: without submodules; not changed.
        inputs: one value for each placeholder; not changed.
        fails: whether a graph fails for inputs, of which it may do what it likes; a candidate
            that cannot run in eager does not fail.
        limit: how often ``fails`` is asked at most.

    Raises:
        ValueError: the graph does not fail.
    """
    search = _Search(fails, limit)
    program = Program.of(graph, inputs)
    if not search.fails(program):
        raise ValueError("the graph does not fail for these inputs")
    steps = (_fewer_results, _earlier_result, _cut, _bypass, _smaller)
    size = None
    while size != _size(program) and search.left > 0:
        size = _size(program)
        for step in steps:
            program = step(program, search)
    return program


def _size(program: Program) -> tuple[int, int, int]:
    tensors = [each for each in program.inputs if isinstance(each, torch.Tensor)]
    elements = sum(each.numel() for each in tensors)
    return len(program.calls), len(program.results) + len(program.inputs), elements


class _Search:
    """Asks whether candidates fail, so often and no more."""

    def __init__(self, fails: Fails, limit: int) -> None:
        self._fails = fails
        self.left = limit

    def fails(self, program: Program) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return self._fails(program.module(), program.fresh_inputs())

    def first(self, candidates: Iterator[Program | None]) -> Program | None:
        """The first candidate that fails."""
        for each in candidates:
            if each is not None and self.fails(each):
                return each
        return None


def _fewer_results(program: Program, search: _Search) -> Program:
    """One result, or halves of them."""
    while len(program.results) > 1:
        results = list(program.results)
        half = len(results) // 2
        choices = [results[:half], results[half:], *([r] for r in results)]
        choices += [[r for r in results if r is not gone] for gone in results]
        found = search.first(program.rebuilt(choice) for choice in choices)
        if found is None:
            return program
        program = found
    return program


def _earlier_result(program: Program, search: _Search) -> Program:
    """Return the earliest node with which the program still fails, by bisection."""
    values = program.values()
    nodes = [n for n in program.calls if isinstance(values[n], torch.Tensor)]
    low, high, best = 0, len(nodes), program
    while low < high:
        middle = (low + high) // 2
        candidate = program.rebuilt([nodes[middle]])
        if len(candidate.calls) < len(best.calls) and search.fails(candidate):
            high, best = middle, candidate
        else:
            low = middle + 1
    return best


def _cut(program: Program, search: _Search) -> Program:
    """Make the values of nodes inputs, many at a time at first."""
    chunk = max(1, len(program.calls) // 2)
    while chunk >= 1:
        at = 0
        while at < len(program.calls):
            part = program.calls[at : at + chunk]
            candidate = _with_given(program, part)
            smaller = candidate is not None and _size(candidate)[0] < _size(program)[0]
            if smaller and candidate is not None and search.fails(candidate):
                program = candidate
            else:
                at += chunk
        chunk //= 2
    return program


def _with_given(program: Program, nodes: Sequence[fx.Node]) -> Program | None:
    values = program.values()
    usable = {n: values[n] for n in nodes if isinstance(values[n], torch.Tensor)}
    if not usable or set(program.results) <= set(usable):
        return None
    return program.rebuilt(program.results, given=usable)


def _bypass(program: Program, search: _Search) -> Program:
    """Let users of a node take one of its inputs that looks the same."""
    position = 0
    while position < len(program.calls):
        node = program.calls[position]
        values = program.values()
        alike = [each for each in node.all_input_nodes if _alike(values[each], values[node])]
        candidates = (program.rebuilt(program.results, instead={node: each}) for each in alike)
        found = search.first(c for c in candidates if c.calls)
        if found is None:
            position += 1
        else:
            program = found
    return program


def _alike(left: Any, right: Any) -> bool:
    return (
        isinstance(left, torch.Tensor)
        and isinstance(right, torch.Tensor)
        and left.shape == right.shape
        and left.dtype == right.dtype
        and left.requires_grad == right.requires_grad
    )


def _smaller(program: Program, search: _Search) -> Program:
    """Shrink each size that occurs to 1, 2, or the half, wherever it occurs."""
    tried: set[tuple[int, int]] = set()
    while True:
        sizes = {n for each in program.inputs if isinstance(each, torch.Tensor) for n in each.shape}
        steps = [(n, less) for n in sorted(sizes, reverse=True) for less in _less(n)]
        step = next((each for each in steps if each not in tried), None)
        if step is None:
            return program
        tried.add(step)
        candidate = _resized(program, *step)
        if candidate is not None and search.fails(candidate):
            program = candidate


def _less(size: int) -> list[int]:
    return [each for each in dict.fromkeys((1, 2, size // 2)) if 0 < each < size]


def _resized(program: Program, size: int, less: int) -> Program | None:
    """The program with one size changed in its inputs and in the numbers of its calls."""

    def change(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(change, value))
        return less if type(value) is int and value == size else value

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = value.detach()
        for dim, extent in enumerate(made.shape):
            made = made.narrow(dim, 0, less) if extent == size else made
        if not made.dtype.is_floating_point and not made.dtype.is_complex and made.numel():
            made = made.clamp(max=less - 1) if int(made.max()) == size - 1 else made
        return made.clone().requires_grad_(value.requires_grad)

    try:
        inputs = [cut(each) for each in program.inputs]
        candidate = program.rebuilt(program.results, change=change, inputs=inputs)
        candidate.values()
    except Exception:  # sizes that do not go together are no candidate
        return None
    return candidate
