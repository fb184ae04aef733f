"""Which gradients reach which inputs, and what autograd keeps on the way, as eager's graph says.

A compiled program is one autograd node in the place of many. What a caller can see of the many is
data here: an input that no given gradient reaches gets None, and a second backward raises where it
meets a node whose saved tensors the first has freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch.autograd.graph import Node, get_gradient_edge

from plait_fx_passes.training.asking import members
from plait_utils import dataclass
from plait_utils.fake import is_fake

_WRITE_TO_VIEW = "torch::autograd::CopySlices"
_TELLS = hasattr(torch._C._autograd.SavedTensor, "data")
"""Whether this torch tells what a node has saved without unpacking it."""


@dataclass(frozen=True, slots=True)
class Step:
    """Autograd nodes that save tensors and lie on the same ways: from which tangents (by their
    order), to which inputs (by placeholder)."""

    tangents: frozenset[int]
    inputs: frozenset[int]


@dataclass(frozen=True, slots=True)
class Flow:
    """The ways of gradients through a program.

    ``reached`` has, for each tangent, the inputs that its gradient reaches; ``steps`` what saves
    tensors on these ways, each kind of way once.
    """

    reached: tuple[frozenset[int], ...]
    steps: tuple[Step, ...]

    def inputs(self, tangents: Sequence[int]) -> frozenset[int]:
        """The inputs that get a gradient where only these tangents are given."""
        return frozenset().union(*(self.reached[each] for each in tangents))

    def including(self, inputs: frozenset[int]) -> Flow:
        """The same where these inputs get gradients, too, on ways that autograd's graph hides, as
        reentrant checkpoints do: any tangent may reach them, and what it runs frees them."""
        hidden = inputs.difference(*self.reached)
        if not hidden:
            return self
        count = len(self.reached)
        everywhere = Step(frozenset(range(count)), hidden.union(*self.reached))
        return Flow(tuple(each | hidden for each in self.reached), (*self.steps, everywhere))

    def run(self, tangents: Sequence[int], inputs: frozenset[int] | None) -> frozenset[int]:
        """The steps that a backward from these tangents to these inputs (None: all) runs."""
        given = frozenset(tangents)
        return frozenset(
            number
            for number, step in enumerate(self.steps)
            if step.tangents & given and (inputs is None or step.inputs & inputs)
        )

    def is_separable(self, tangent: int) -> bool:
        """Whether backwards from one tangent to different inputs may have no step in common."""
        wanted = self.reached[tangent]
        return not any(tangent in step.tangents and wanted <= step.inputs for step in self.steps)


def flow_of(results: Sequence[torch.Tensor], leaves: Mapping[int, Sequence[torch.Tensor]]) -> Flow:
    """Read the ways from autograd's graph, before a backward has freed it.

    Args:
        results: the differentiable results, one for each tangent.
        leaves: the tensors that gradients are asked for, by placeholder.
    """
    starts, above, below = _ways(results, leaves)
    kinds = dict.fromkeys((above[n], below[n]) for n in below if below[n] and _saves_tensors(n))
    return Flow(
        reached=tuple(members(0 if start is None else below[start]) for start in starts),
        steps=tuple(Step(members(tangents), members(inputs)) for tangents, inputs in kinds),
    )


def classes_of(
    results: Sequence[torch.Tensor], leaves: Mapping[int, Sequence[torch.Tensor]]
) -> dict[Node, Step]:
    """What kind of way each node of autograd's graph lies on that saves tensors.

    Args as of :func:`flow_of`; leaves may be views, at which the ways end.
    """
    _, above, below = _ways(results, leaves)
    return {
        node: Step(members(above[node]), members(bits))
        for node, bits in below.items()
        if bits and _saves_tensors(node)
    }


def saved_tensors(results: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]] | None:
    """What autograd has saved, each with the results, as bits, from which ways lead to the node
    that has. None for a torch that does not tell."""
    if not _TELLS:
        return None
    _, above, _ = _ways(results, {})
    return [(tensor, bits) for node, bits in above.items() for tensor in saved_by(node)]


def saved_memory(saved: Iterable[tuple[torch.Tensor, int]]) -> dict[int, frozenset[int]]:
    """The storages, by their addresses, that saved tensors look at, each with the results that ask
    for them."""
    found: dict[int, int] = {}
    for tensor, bits in saved:
        key = int(tensor.untyped_storage()._cdata)
        found[key] = found.get(key, 0) | bits
    return {key: members(bits) for key, bits in found.items()}


def looked_at(
    saved: Iterable[tuple[torch.Tensor, int]], tensors: Mapping[int, torch.Tensor]
) -> dict[int, bool]:
    """Which of these tensors, by their numbers, others look at that are saved, and whether such a
    tensor is saved itself, too."""
    numbers = {id(tensor): number for number, tensor in tensors.items()}
    storages = {int(each.untyped_storage()._cdata): number for number, each in tensors.items()}
    itself: set[int] = set()
    others: set[int] = set()
    for tensor, _ in saved:
        if id(tensor) in numbers:
            itself.add(numbers[id(tensor)])
        elif (number := storages.get(int(tensor.untyped_storage()._cdata))) is not None:
            others.add(number)
    return {number: number in itself for number in sorted(others)}


def results_above(results: Sequence[torch.Tensor]) -> list[frozenset[int]]:
    """For each result the others, by position, of which ways of gradients lead through it."""
    starts, above, _ = _ways(results, {})
    return [
        frozenset()
        if start is None
        else frozenset(each for each in members(above[start]) if starts[each] is not start)
        for start in starts
    ]


def passing(
    results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
) -> list[frozenset[int]]:
    """For each tensor that autograd computed the results, by position, of which ways of gradients
    lead on through it. A result's own way begins there, and does not count."""
    numbers: dict[tuple[Node | None, int], list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.grad_fn is not None:
            numbers.setdefault((tensor.grad_fn, tensor.output_nr), []).append(number)
    found = [0] * len(tensors)
    if numbers:
        _, above, _ = _ways(results, {})
        for node, bits in above.items():
            for edge in node.next_functions:
                for number in numbers.get(edge, ()):
                    found[number] |= bits
    return [members(bits) for bits in found]


def passes_writes_through_views(results: Sequence[torch.Tensor]) -> frozenset[int]:
    """The results from which ways lead through writes to views, each of which is one node for the
    tensor that is looked at, and tells nothing of the node within."""
    _, above, _ = _ways(results, {})
    bits = 0
    for node, own in above.items():
        if node.name() == _WRITE_TO_VIEW:
            bits |= own
    return members(bits)


def saved_by(node: Node) -> Iterator[torch.Tensor]:
    """The tensors that a node has saved, where this torch tells."""
    own = getattr(node, "_raw_saved_tensors", None)
    waiting: list[object] = [own] if isinstance(own, tuple) else []
    if not waiting:
        waiting = [getattr(node, name) for name in dir(node) if name.startswith("_raw_saved_")]
    while waiting:
        saved = waiting.pop()
        if isinstance(saved, (list, tuple)):
            waiting += saved
            continue
        data = getattr(saved, "data", None)
        if isinstance(data, torch.Tensor) and data.layout is torch.strided:
            yield data


def nodes_below(tensors: Sequence[torch.Tensor]) -> list[Node]:
    """The nodes of autograd's graph that computed tensors."""
    starts = [_node_of(tensor) for tensor in tensors]
    return _children_first([node for node in starts if node is not None])


def may_raise(results: Sequence[torch.Tensor]) -> bool:
    """Whether a backward from tensors comes to a node that only raises, as after a function that
    is differentiable once. Gradients of some inputs alone go round it, others do not."""
    return any(node.name() == "torch::autograd::Error" for node in nodes_below(results))


def _ways(
    results: Sequence[torch.Tensor], leaves: Mapping[int, Sequence[torch.Tensor]]
) -> tuple[list[Node | None], dict[Node, int], dict[Node, int]]:
    """Where gradients of the results start, and of all nodes from there, children first, from
    which results and to which leaves ways lead through them, as bits of numbers."""
    ends = {
        _accumulator_of(leaf): index
        for index in leaves
        for leaf in leaves[index]
        if leaf.requires_grad  # which the program may have ended, in place
    }
    starts = [_node_of(result) for result in results]
    order = _children_first([node for node in starts if node is not None])
    below: dict[Node, int] = {}  # sets as bits of a number: unions along long chains are cheap
    for node in order:
        bits = 1 << ends[node] if node in ends else 0
        for child in _children(node):
            bits |= below[child]
        below[node] = bits
    above = dict.fromkeys(order, 0)
    for number, start in enumerate(starts):
        if start is not None:
            above[start] |= 1 << number
    for node in reversed(order):
        for child in _children(node):
            above[child] |= above[node]
    return starts, above, below


def _accumulator_of(leaf: torch.Tensor) -> Node:
    """Where gradients of a leaf end."""
    if not is_fake(leaf):
        return get_gradient_edge(leaf).node
    with leaf.fake_mode:  # type: ignore[attr-defined]  # fake tensors have it
        # torch takes a view: found through the tensor, its kernel loads torch.distributed
        return get_gradient_edge(leaf).node


def _node_of(result: torch.Tensor) -> Node | None:
    """Where gradients of a result start; nowhere for a view that was taken without them, and for
    what follows from no input that needs them."""
    if not result.requires_grad or (result.grad_fn is None and result._is_view()):
        return None
    return get_gradient_edge(result).node


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _children_first(starts: Sequence[Node]) -> list[Node]:
    """All nodes below ``starts``, each after those below it."""
    done: dict[Node, None] = {}
    waiting = [(node, False) for node in reversed(starts)]
    while waiting:
        node, is_left = waiting.pop()
        if node in done:
            continue
        if is_left:
            done[node] = None
            continue
        waiting.append((node, True))
        waiting += [(child, False) for child in _children(node) if child not in done]
    return list(done)


def _saves_tensors(node: Node) -> bool:
    """Whether a second backward through the node raises once its tensors are freed.

    Nothing is unpacked: hooks of saved tensors would run, as those of checkpoints.
    """
    if node.name() == _WRITE_TO_VIEW:
        return True  # it forgets the node within
    own = getattr(node, "_raw_saved_tensors", None)
    if isinstance(own, tuple):
        return bool(own)  # a function of the user's
    names = [name for name in dir(node) if name.startswith("_raw_saved_")]
    # Of torch before 2.12 it cannot be asked whether a place is empty, which few are.
    return any(_holds(getattr(node, name)) for name in names) if _TELLS else bool(names)


def _holds(saved: object) -> bool:
    if isinstance(saved, (list, tuple)):
        return any(map(_holds, saved))
    return getattr(saved, "data", None) is not None
