"""The minimum cut of a directed graph by Dinic's algorithm: of all minimum cuts the one nearest to the sink.

networkx's minimum_cut takes minutes for the graph of a large decoder. Here the graph falls into small parts, one or a few
for each layer, which share only source and sink: paths are short and Dinic's algorithm takes few phases.
"""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1
INFINITE = 1 << 200


class FlowGraph:
    """Edges with capacities. Node 0 is the source, node 1 the sink; edges are stored in pairs, the reverse after each."""

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # by node, its edges
        self.head: list[int] = []
        self.capacity: list[int] = []

    def new(self) -> int:
        """A new node."""
        self.edges.append([])
        return len(self.edges) - 1

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """An edge and its reverse."""
        for node, other, amount in ((tail, head, capacity), (head, tail, 0)):
            self.edges[node].append(len(self.head))
            self.head.append(other)
            self.capacity.append(amount)

    def beyond_cut(self) -> set[int]:
        """Send the most that can flow, and return the nodes on the sink's side of the cut."""
        while (level := self._levels())[SOURCE] >= 0:
            turn = [0] * len(self.edges)
            while self._sent(level, turn):
                pass
        return {node for node, distance in enumerate(level) if distance >= 0}

    def _levels(self) -> list[int]:
        """By node, the edges to the sink on the shortest path with capacity left; -1 where there is none."""
        level = [-1] * len(self.edges)
        level[SINK] = 0
        queue = deque([SINK])
        while queue:
            node = queue.popleft()
            for edge in self.edges[node]:
                before = self.head[edge]
                if level[before] < 0 and self.capacity[edge ^ 1] > 0:
                    level[before] = level[node] + 1
                    queue.append(before)
        return level

    def _sent(self, level: list[int], turn: list[int]) -> bool:
        """Send flow along one shortest path; False if there is none. turn: by node, the first edge not yet found useless."""
        path: list[int] = []
        node = SOURCE
        while node != SINK:
            edges = self.edges[node]
            while turn[node] < len(edges):
                edge = edges[turn[node]]
                if self.capacity[edge] > 0 and level[self.head[edge]] == level[node] - 1:
                    break
                turn[node] += 1
            else:
                if not path:
                    return False
                node = self.head[path.pop() ^ 1]
                turn[node] += 1
                continue
            path.append(edge)
            node = self.head[edge]
        amount = min(self.capacity[edge] for edge in path)
        for edge in path:
            self.capacity[edge] -= amount
            self.capacity[edge ^ 1] += amount
        return True
