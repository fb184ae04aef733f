"""Minimum cuts of small networks with integer capacities, in plain Python.

Networks of partitions fall into hundreds of components of a few vertices, for which importing a
graph library costs more than cutting: Dinic's algorithm (Y. Dinitz, *Algorithm for solution of a
problem of maximum flow in a network with power estimation*, 1970) cuts each component alone.
"""

from __future__ import annotations

from collections.abc import Iterable

INFINITE = 1 << 200
"""The capacity of an edge that is never cut."""


class Network:
    """Vertices 0 to n - 1 between a source and a sink, and edges with capacities."""

    def __init__(self, count: int) -> None:
        self.from_source = [0] * count
        self.to_sink = [0] * count
        self._edges: list[list[int]] = [[] for _ in range(count)]
        self._heads: list[int] = []
        self._room: list[int] = []

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """An edge; its reverse has no capacity."""
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._room.append(room)

    def sink_side(self) -> list[bool]:
        """Which vertices are on the sink's side of the minimum cut that has fewest there."""
        side = [False] * len(self._edges)
        for component in self._components():
            self._saturate(component)
            for vertex in self._reaching_sink(component):
                side[vertex] = True
        return side

    def _components(self) -> Iterable[list[int]]:
        """The vertices that edges connect, the source and sink left out."""
        seen = [False] * len(self._edges)
        for start in range(len(self._edges)):
            if seen[start]:
                continue
            seen[start] = True
            found = [start]
            for vertex in found:
                for edge in self._edges[vertex]:
                    if not seen[self._heads[edge]]:
                        seen[self._heads[edge]] = True
                        found.append(self._heads[edge])
            yield found

    def _saturate(self, component: list[int]) -> None:
        """Send as much flow as the component takes, by shortest paths first."""
        for vertex in component:  # what enters and leaves at one vertex needs no path
            direct = min(self.from_source[vertex], self.to_sink[vertex])
            self.from_source[vertex] -= direct
            self.to_sink[vertex] -= direct
        while True:
            levels = self._levels(component)
            if levels is None:
                return
            position = dict.fromkeys(levels, 0)
            for vertex, level in levels.items():
                if level == 0:
                    while self._send_one(vertex, levels, position):
                        pass

    def _levels(self, component: list[int]) -> dict[int, int] | None:
        """Each vertex's distance from the source; None where no path leads to the sink."""
        levels = {vertex: 0 for vertex in component if self.from_source[vertex] > 0}
        reached = False
        waiting = list(levels)
        for vertex in waiting:
            reached = reached or self.to_sink[vertex] > 0
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._room[edge] > 0 and head not in levels:
                    levels[head] = levels[vertex] + 1
                    waiting.append(head)
        return levels if reached else None

    def _send_one(self, start: int, levels: dict[int, int], position: dict[int, int]) -> bool:
        """Flow along one path from the source through ``start``, if there is one."""
        if self.from_source[start] == 0:
            return False
        path: list[int] = []
        vertex = start
        while self.to_sink[vertex] == 0:
            edge = self._next(vertex, levels, position)
            if edge is not None:
                path.append(edge)
                vertex = self._heads[edge]
            elif path:
                vertex = self._heads[path.pop() ^ 1]
                position[vertex] += 1
            else:
                return False
        flow = min([self.from_source[start], self.to_sink[vertex], *(self._room[e] for e in path)])
        self.from_source[start] -= flow
        self.to_sink[vertex] -= flow
        for edge in path:
            self._room[edge] -= flow
            self._room[edge ^ 1] += flow
        return True

    def _next(self, vertex: int, levels: dict[int, int], position: dict[int, int]) -> int | None:
        """The next edge with room that leads one level on."""
        edges = self._edges[vertex]
        while position[vertex] < len(edges):
            edge = edges[position[vertex]]
            if self._room[edge] > 0 and levels.get(self._heads[edge]) == levels[vertex] + 1:
                return edge
            position[vertex] += 1
        return None

    def _reaching_sink(self, component: list[int]) -> Iterable[int]:
        """The vertices from which more could flow to the sink, were there more."""
        found = [vertex for vertex in component if self.to_sink[vertex] > 0]
        seen = set(found)
        for vertex in found:
            for edge in self._edges[vertex]:
                tail = self._heads[edge]
                if self._room[edge ^ 1] > 0 and tail not in seen:
                    seen.add(tail)
                    found.append(tail)
        return found
