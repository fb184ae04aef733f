"""Graphs under `DistributedDataParallel`: where they are cut, so that it sends gradients early.

Its reducer sends the gradients of a bucket of parameters once all of them are there, while autograd
goes on. A program gives all its gradients at once, so a graph becomes several, each with the
parameters of one bucket: these are filled from the last layers on, as the reducer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from plait.circumstances import active_bucket_bytes
from plait.gpus import tensors_in

_FIRST = 1 << 20
"""Bytes of the first bucket, which the reducer has smaller: all others wait for it."""


def bucket_starts(captured: fx.GraphModule) -> frozenset[fx.Node]:
    """The nodes at which further parts of a graph begin; none where no reducer waits for it."""
    limit = _bucket_bytes(captured)
    if limit is None or not torch.is_grad_enabled():
        return frozenset()
    nodes = [node for node in captured.graph.nodes if node.op not in _APART]
    if any(node.target is torch.autograd.grad for node in nodes):
        return frozenset()  # it goes backward itself
    return frozenset(nodes[n] for n in _starts(nodes, limit))


_APART = ("placeholder", "get_attr", "output")


def _bucket_bytes(captured: fx.GraphModule) -> int | None:
    """How large the buckets are of the wrapper that the graph runs in; None where there is none.

    The tracer tells where it has traced the wrapper, torch where that runs.
    """
    for node in captured.graph.find_nodes(op="placeholder"):
        if "bucket_bytes" in node.meta:
            return int(node.meta["bucket_bytes"])
    return active_bucket_bytes()


def _starts(nodes: Sequence[fx.Node], limit: int) -> Iterator[int]:
    """The places where parts begin, the last first.

    The gradient of a parameter is there once the part is done where it is first used. A part that
    has enough of them may begin anywhere behind the one before that is such a place: it does where
    least goes over.
    """
    first = _first_uses(nodes)
    crossing = _crossing(nodes)
    places = sorted({first[each] for each in first}, reverse=True)
    size = {n: sum(_nbytes(each) for each in first if first[each] == n) for n in places}
    held, most = 0, min(_FIRST, limit)
    for place, earlier in zip(places, [*places[1:], -1], strict=True):
        held += size[place]
        if held >= most and earlier >= 0:
            # Of several that are as good, the latest: what is between belongs to what it uses.
            yield min(range(place, earlier, -1), key=crossing.__getitem__)
            held, most = 0, limit


def _first_uses(nodes: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Where each input that is a leaf and needs a gradient is first used."""
    found: dict[fx.Node, int] = {}
    for n, node in enumerate(nodes):
        for each in node.all_input_nodes:
            if each.op == "placeholder" and _needs_gradient(each):
                found.setdefault(each, n)
    return found


def _needs_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


def _crossing(nodes: Sequence[fx.Node]) -> list[int]:
    """The bytes of what is computed before each place, and used from there on."""
    place = {node: n for n, node in enumerate(nodes)}
    change = [0] * (len(nodes) + 1)
    for n, node in enumerate(nodes):
        end = max((place.get(user, len(nodes) - 1) for user in node.users), default=n)
        change[n + 1] += _nbytes(node)
        change[min(end + 1, len(nodes))] -= _nbytes(node)
    found, held = [], 0
    for each in change:
        held += each
        found.append(held)
    return found


def _nbytes(node: fx.Node) -> int:
    """Bytes of the tensors that a node gives; of views those that they show."""
    return sum(map(_size, tensors_in(node.meta.get("val"))))


def _size(value: torch.Tensor) -> int:
    count = 1
    for each in value.shape:
        node = getattr(each, "node", None)
        count *= each if node is None else node.hint or 1
    return count * value.element_size()
