"""Which tensors of the forward are saved for the backward: the rules of torch.compile's min-cut partitioner.

Source: `solve_min_cut` in torch/_functorch/partitioners.py, with its default options. Tensors of the forward that gradients
read are saved or computed again; the cut with the fewest bytes decides. Not computed again: products, convolutions and
attention, random numbers, what a product of the backward reads, results four times smaller than what they are computed from,
and what is read both before and behind a kernel that fuses with nothing.
"""

from __future__ import annotations

import heapq
from collections import deque

from graphflops.inductor.lowering import JointGraph, Op, users_of

_NEVER = 10**9  # distance from the backward of what no gradient reads
_FARTHEST = 100
_NEARER = 1.1  # how much a tensor weighs for each operator between it and the backward
_SMALLER = 4
_LONGEST_CHAIN = 100
_MOST_VISITED = 300_000  # operators looked at for the first one that does not fuse, in a whole program


class Partition:
    """The saved tensors of a joint graph."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint, self.ops = joint, joint.ops
        self.maker = {name: op for op in self.ops for name in op.outputs}
        self.place = {id(op): index for index, op in enumerate(self.ops)}
        self.users = users_of(self.ops)
        self.left = _MOST_VISITED
        self.forward: set[int] = set()  # places of the operators that the results are computed by
        needed = set(self.joint.results)
        for place, op in reversed([*enumerate(self.ops)]):
            if not op.is_gradient and not needed.isdisjoint(op.outputs):
                self.forward.add(place)
                needed.update(op.reads)
        self.banned = self._not_computed_again()
        # By place of an operator, the operators between it and the backward.
        self.distances = dict.fromkeys(range(len(self.ops)), 0)
        for place in sorted(self.forward, reverse=True):
            made = self.ops[place].outputs
            users = [(name, user) for name in made for user in self.users.get(name, ())]
            steps = [self.distances[self.place[id(user)]] + 1 + (name in user.views) for name, user in users]
            self.distances[place] = min(steps, default=_NEVER)
        self.graph = FlowGraph()
        self.edges: dict[str, list[tuple[int, int]]] = {}
        self.todo: list[str] = []

    def saved(self) -> dict[str, None]:
        """Names of the tensors that the forward hands to the backward, those of inputs included, in program order."""
        self._add_nodes()
        beyond, found = self.graph.beyond_cut(), self.edges.items()
        cut = [name for name, nodes in found if any(a not in beyond and b in beyond for a, b in nodes)]
        order = {name: place for place, op in enumerate(self.ops) for name in op.outputs}
        return dict.fromkeys(sorted(cut, key=lambda name: order.get(name, -1)))

    def _users(self, op: Op) -> list[Op]:
        return [user for name in op.outputs for user in self.users.get(name, ())]

    def _is_forward(self, op: Op) -> bool:
        return self.place[id(op)] in self.forward

    def _not_computed_again(self) -> set[str]:
        """Names of tensors that the backward does not compute again."""
        banned = set(self.joint.inputs)
        for op in self.ops:
            if op.is_gradient or op.must_recompute or not self._is_forward(op):
                continue
            read = sum(self.joint.bytes(name) for name in op.reads)
            is_smaller = self.joint.bytes(op.outputs[0]) * _SMALLER < read
            # Whether an operator of the backward that does not fuse reads a result.
            is_stored = any(not self._is_forward(user) and not _fuses(op, user) for user in self._users(op))
            if not op.recomputable or is_smaller or is_stored:
                banned.update(op.outputs)
        self._ban_far_apart(banned)
        self._ban_long_chains(banned)
        return banned

    def _ban_far_apart(self, banned: set[str]) -> None:
        """Not computed again: what reads a tensor behind the first kernel of its own that follows other readers."""
        for name, users in self.users.items():
            inside = [user for user in users if self._is_forward(user)]
            if len(inside) < 2:
                continue
            maker = self.maker.get(name)
            most = max(self.place[id(user)] for user in inside)
            first = self._first_unfusible(inside, most)
            for user in inside:
                is_fused = maker is not None and _fuses(maker, user)
                if is_fused and self.place[id(user)] > first and not user.must_recompute:
                    banned.update(user.outputs)

    def _first_unfusible(self, start: list[Op], most: int) -> int:
        """The place of the first operator after these that does not fuse with what it reads."""
        heap = [(self.place[id(op)], True) for op in start]
        heapq.heapify(heap)
        seen = set(heap)
        while heap and self.left > 0:
            self.left -= 1
            place, fuses = heapq.heappop(heap)
            if not fuses:
                return place
            op = self.ops[place]
            for user in self._users(op):
                self.left -= 1
                entry = (self.place[id(user)], _fuses(op, user))
                if self._is_forward(user) and entry[0] <= most and entry not in seen:
                    seen.add(entry)
                    heapq.heappush(heap, entry)
        return most

    def _ban_long_chains(self, banned: set[str]) -> None:
        """Not computed again: one operator of every chain of more than a hundred that fuse."""
        visited: set[int] = set()
        for start in sorted(self.forward):
            heap = [start]
            while heap:
                place = heapq.heappop(heap)
                if place in visited:
                    continue
                visited.add(place)
                op = self.ops[place]
                if place > start + _LONGEST_CHAIN and not heap:
                    banned.update(() if op.must_recompute else op.outputs)
                    break
                for user in self._users(op):
                    if self._is_forward(user) and _fuses(op, user) and banned.isdisjoint(user.outputs):
                        heapq.heappush(heap, self.place[id(user)])

    def _add_nodes(self) -> None:
        """Add what leads to the backward; by tensor, the nodes before and behind the edges that are cut where it is saved.

        A tensor that is read in another shape has a second edge, for the view.
        """
        graph, edges, todo = self.graph, self.edges, self.todo
        gradients = [op for op in self.ops if op.is_gradient]
        read = {(name, name in op.views) for op in gradients for name in op.reads}
        read |= {(name, False) for name in self.joint.gradients}
        for name, is_view in sorted(read):
            op = self.maker.get(name)
            if name in self.joint.tangents or (op is not None and op.is_gradient):
                continue
            own = self._edge(name)
            if is_view:
                view = (graph.new(), graph.new())
                graph.connect(own[1], view[0], INFINITE)
                graph.connect(*view, int(self.joint.bytes(name) * _NEARER))
                edges[name].append(view)
                own = view
            graph.connect(own[1], SINK, INFINITE)
        while todo:
            name = todo.pop()
            entry = edges[name][0][0]
            if name in self.banned or name not in self.maker:
                graph.connect(SOURCE, entry, INFINITE)
                continue
            made = self.maker[name]
            if made.must_recompute:
                graph.connect(entry, SINK, INFINITE)
            for source in made.reads:
                graph.connect(self._edge(source)[1], entry, INFINITE)

    def _edge(self, name: str) -> tuple[int, int]:
        """The nodes of a tensor, with what it costs to save it; new ones are put on the list of what is to do."""
        if name not in self.edges:
            size, op = self.joint.bytes(name), self.maker.get(name)
            if op is not None:
                far = max(min(self.distances[self.place[id(op)]], _FARTHEST), 1)
                users = self.users.get(name, ())
                size = int(size * _NEARER**far)
                size *= 2 if all(name in user.views or _fuses(op, user) for user in users) else 1
            self.edges[name] = [(self.graph.new(), self.graph.new())]
            self.graph.connect(*self.edges[name][0], size)
            self.todo.append(name)
        return self.edges[name][0]


def _fuses(op: Op, user: Op) -> bool:
    """Whether the partitioner takes two operators to be one kernel."""
    return all(one.is_fusible and (one.recomputable or one.is_random) for one in (op, user))


SOURCE, SINK = 0, 1
INFINITE = 1 << 200


class FlowGraph:
    """Edges with capacities. Node 0 is the source, node 1 the sink; edges are stored in pairs, the reverse after each."""

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # by node, its edges
        self.head: list[int] = []
        self.capacity: list[int] = []

    def new(self) -> int:
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
