"""Places for the boxes of a graph: layers from inputs down to results.

The steps are those of K. Sugiyama, S. Tagawa, M. Toda, "Methods for visual understanding of
hierarchical system structures", 1981: layers by longest paths, bends where an edge crosses layers,
order within layers by barycentres, then places that pull neighbours together. Time grows linearly
with boxes and bends.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from plait_utils import dataclass

_SWEEPS = 12
GAP = 18.0
LAYER_GAP = 34.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of the boxes, and for each edge the points that it goes through, in pixels."""

    places: tuple[tuple[float, float], ...]
    ways: tuple[tuple[tuple[float, float], ...], ...]
    size: tuple[float, float]


def place(widths: Sequence[float], height: float, edges: Sequence[tuple[int, int]]) -> Layout:
    """Lay out boxes whose edges lead from earlier ones to later ones.

    Args:
        widths: of the boxes, in pixels, in topological order.
        height: of every box, in pixels.
        edges: from and to, by position in ``widths``.
    """
    layers = _layers(len(widths), edges)
    net = _Net(list(widths), layers, edges)
    net.order()
    across = net.places()
    step = height + LAYER_GAP
    centre = [(across[n], height / 2 + step * net.layer[n]) for n in range(len(net.layer))]
    ways = tuple(tuple(centre[n] for n in chain) for chain in net.chains)
    right = max((across[n] + net.widths[n] / 2 for n in range(len(across))), default=0.0)
    bottom = max((y + height / 2 for _, y in centre), default=0.0)
    return Layout(tuple(centre[: len(widths)]), ways, (right, bottom))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest way to each box; boxes without producers go right above their users."""
    layer = [0] * count
    users: list[list[int]] = [[] for _ in range(count)]
    has_producer = [False] * count
    for start, end in sorted(edges, key=lambda edge: edge[1]):
        layer[end] = max(layer[end], layer[start] + 1)
        users[start].append(end)
        has_producer[end] = True
    for box in range(count):
        if not has_producer[box] and users[box]:
            layer[box] = max(0, min(layer[user] for user in users[box]) - 1)
    return layer


class _Net:
    """Boxes and bends, their layers and neighbours."""

    def __init__(
        self, widths: list[float], layer: list[int], edges: Sequence[tuple[int, int]]
    ) -> None:
        self.layer = list(layer)
        self.widths = widths
        self.chains: list[list[int]] = []
        for start, end in edges:
            bends = list(range(len(self.layer), len(self.layer) + layer[end] - layer[start] - 1))
            self.layer += range(layer[start] + 1, layer[end])
            self.widths += [4.0] * len(bends)
            self.chains.append([start, *bends, end])
        self.above: list[list[int]] = [[] for _ in self.layer]
        self.below: list[list[int]] = [[] for _ in self.layer]
        for chain in self.chains:
            for upper, lower in itertools.pairwise(chain):
                self.below[upper].append(lower)
                self.above[lower].append(upper)
        self.rows: list[list[int]] = [[] for _ in range(max(self.layer, default=-1) + 1)]
        for each, row in enumerate(self.layer):
            self.rows[row].append(each)

    def order(self) -> None:
        """Sort each row by where its neighbours are, down and up by turns."""
        for sweep in range(_SWEEPS):
            down = sweep % 2 == 0
            near = self.above if down else self.below
            place = {each: float(n) for row in self.rows for n, each in enumerate(row)}
            for row in self.rows if down else reversed(self.rows):
                row.sort(key=lambda each: _mean([place[n] for n in near[each]], place[each]))
                place.update((each, float(n)) for n, each in enumerate(row))

    def places(self) -> list[float]:
        """Centres across: near those of neighbours, without overlap, in the rows' order."""
        across = [0.0] * len(self.layer)
        for row in self.rows:
            self._spread(row, across, [0.0] * len(row))
        for sweep in range(_SWEEPS):
            near = self.above if sweep % 2 == 0 else self.below
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                wanted = [_mean([across[n] for n in near[e]], across[e]) for e in row]
                self._spread(row, across, wanted)
        left = min((across[n] - self.widths[n] / 2 for n in range(len(across))), default=0.0)
        return [each - left for each in across]

    def _spread(self, row: Sequence[int], across: list[float], wanted: Sequence[float]) -> None:
        """Places closest to those wanted: groups that would overlap are pushed as one."""
        groups: list[tuple[float, float, list[int]]] = []  # sum of wanted starts, width, members
        for each, centre in zip(row, wanted, strict=True):
            half = self.widths[each] / 2
            total, width, members = centre - half, self.widths[each] + GAP, [each]
            while groups and _start(groups[-1]) + groups[-1][1] > total / len(members):
                before, wide, others = groups.pop()
                total = before + total - wide * len(members)
                width, members = wide + width, others + members
            groups.append((total, width, members))
        for group in groups:
            at = _start(group)
            for each in group[2]:
                across[each] = at + self.widths[each] / 2
                at += self.widths[each] + GAP


def _start(group: tuple[float, float, list[int]]) -> float:
    return group[0] / len(group[2])


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
