"""Which tensors of the forward are saved for backward: the rules of torch.compile's min-cut partitioner.

Source: `solve_min_cut` in torch/_functorch/partitioners.py, with default options. Forward tensors that gradients read are
saved or recomputed; the cut with the fewest bytes decides. Never recomputed are products, convolutions and attention, random
numbers, what a product of the backward reads, results that are four times smaller than their operands, and readers of a
tensor that come after a kernel which does not fuse, if other readers come before it.
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import inf

from graphflops.inductor.lowering import JointGraph, Op, places_of
from graphflops.kernels.choices import constants, limits

# A tensor's nodes: before (0) and after (1) the edge that is cut if it is saved, and after the edge of its view (2).
Node = tuple[str, int]
Edge = tuple[Node, Node, float]  # tail, head and capacity

_FARTHEST, _SMALLER = limits("inductor_2", "partition", "farthest smaller")
(_NEARER,) = constants("inductor_2", "partition", "nearer")
_MOST_VISITED = 300_000  # operators visited in searches for the first that does not fuse, per program


class Partition:
    """The saved tensors of a joint graph."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint, self.ops = joint, joint.ops
        self.maker, self.users = places_of(self.ops)
        self.left = _MOST_VISITED
        self.forward: set[int] = set()  # places of the operators that compute the results
        needed = set(self.joint.results)
        for place, op in reversed([*enumerate(self.ops)]):
            if not op.is_gradient and not needed.isdisjoint(op.outputs):
                self.forward.add(place)
                needed.update(op.reads)
        # By place: the forward operators that read its results, and whether they fuse with it.
        self.after = [
            [(user, _fuses(op, self.ops[user])) for _, user in self._readers(op) if user in self.forward]
            for op in self.ops
        ]
        self.banned = self._not_computed_again()
        # By place: the number of operators between it and the backward.
        self.distances = dict.fromkeys(range(len(self.ops)), 0)
        for place in sorted(self.forward, reverse=True):
            readers = self._readers(self.ops[place])
            steps = [self.distances[user] + 1 + (name in self.ops[user].views) for name, user in readers]
            self.distances[place] = min(steps, default=_FARTHEST)

    def saved(self) -> dict[str, None]:
        """Names of the tensors that the forward saves for backward, with inputs, in program order."""
        names: dict[str, None] = {}
        edges = [*self._edges(names)]
        beyond = beyond_cut(edges)
        crossing = {tail[0] for tail, head, _ in edges if tail not in beyond and head in beyond}
        cut = [name for name in names if name in crossing]
        return dict.fromkeys(sorted(cut, key=lambda name: self.maker.get(name, -1)))

    def _readers(self, op: Op) -> list[tuple[str, int]]:
        """An operator's results, each with the places of its readers."""
        return [(name, user) for name in op.outputs for user in self.users.get(name, ())]

    def _not_computed_again(self) -> set[str]:
        banned = set(self.joint.inputs)
        for op in [self.ops[place] for place in self.forward]:
            if op.must_recompute:
                continue
            read = sum(self.joint.bytes(name) for name in op.reads)
            is_smaller = self.joint.bytes(op.outputs[0]) * _SMALLER < read
            # Whether an operator of the backward that does not fuse reads a result.
            users = {user for _, user in self._readers(op)} - self.forward
            is_stored = not all(_fuses(op, self.ops[user]) for user in users)
            if not op.recomputable or is_smaller or is_stored:
                banned.update(op.outputs)
        self._ban_far_apart(banned)
        return banned

    def _ban_far_apart(self, banned: set[str]) -> None:
        """Ban a tensor's readers that come after the first operator that does not fuse, if other readers come before it."""
        groups = [(users, users) for users in self.joint.constants.values()]
        for name, users in self.users.items():
            views = [self.ops[user].views.get(name) for user in users]
            for view in dict.fromkeys(views):
                # Inputs fuse with nothing, but their views do. Readers through a view form a group of their own.
                own = [user for user, by in zip(users, views, strict=True) if by == view]
                if view is not None or (name in self.maker and _is_fusible(self.ops[self.maker[name]])):
                    groups.append((own, own if view else users))
        for users, start in groups:
            inside = [user for user in start if user in self.forward]
            if len(inside) > 1:
                first = self._first_unfusible(inside)
                far = [self.ops[user] for user in users if user > first and user in self.forward]
                again = (op for op in far if _is_fusible(op) and not op.must_recompute)
                banned.update(name for op in again for name in op.outputs)

    def _first_unfusible(self, start: Sequence[int]) -> int:
        """The place of the first operator that follows these and does not fuse, at most the place of the last of them."""
        most, heap = max(start), [(place, True) for place in start]
        heapq.heapify(heap)
        seen = set(heap)
        while heap and self.left > 0:
            place, fuses = heapq.heappop(heap)
            if not fuses:
                return place
            self.left -= 1 + len(self.after[place])
            for entry in self.after[place]:
                if entry[0] <= most and entry not in seen:
                    seen.add(entry)
                    heapq.heappush(heap, entry)
        return most

    def _edges(self, names: dict[str, None]) -> Iterator[Edge]:
        """The edges that lead to the backward: one for each tensor, cut if the tensor is saved, and those before it.

        A tensor that is read in another shape has a second edge, for the view. names: receives the tensors' names, in order.
        """
        gradients = [op for op in self.ops if op.is_gradient]
        read = {(name, name in op.views) for op in gradients for name in op.reads}
        read |= {(name, False) for name in self.joint.gradients}
        for name, is_view in sorted(read):
            if name in self.joint.tangents or (name in self.maker and self.ops[self.maker[name]].is_gradient):
                continue
            names[name] = None
            if is_view:
                yield (name, 1), (name, 2), int(self.joint.bytes(name) * _NEARER)
            yield (name, 1 + is_view), SINK, inf
        todo = [*names]
        while todo:
            name = todo.pop()
            entry = (name, 0)
            yield entry, (name, 1), self._cost(name)
            if name in self.banned or name not in self.maker:
                yield SOURCE, entry, inf
                continue
            made = self.ops[self.maker[name]]
            if made.must_recompute:
                yield entry, SINK, inf
            for source in made.reads:
                yield (source, 1), entry, inf
                if source not in names:
                    names[source] = None
                    todo.append(source)

    def _cost(self, name: str) -> int:
        """The cost of saving a tensor: its bytes, weighted by distance from the backward; double if nothing stores it."""
        size, place = self.joint.bytes(name), self.maker.get(name)
        if place is None:
            return size
        op, far = self.ops[place], max(min(self.distances[place], _FARTHEST), 1)
        users = [self.ops[user] for user in self.users.get(name, ())]
        # A view fuses with its base.
        is_fused = all(_fuses(op, op if name in user.views else user) for user in users)
        return int(size * _NEARER**far) * (2 if is_fused else 1)


def _is_fusible(op: Op) -> bool:
    """Whether the partitioner assumes that an operator fuses with others."""
    return op.is_fusible and (op.recomputable or op.role == "random")


def _fuses(op: Op, user: Op) -> bool:
    """Whether the partitioner assumes that two operators fuse; a join fuses with everything that it joins."""
    return user.role == "join" or (_is_fusible(op) and _is_fusible(user))


SOURCE, SINK = ("source", 0), ("sink", 0)


def beyond_cut(edges: Iterable[Edge]) -> set[Hashable]:
    """The nodes on the sink's side of the cheapest cut; among equally cheap cuts, of the one nearest to the sink."""
    import networkx  # no other program needs it, and importing it takes long

    graph = networkx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    graph.add_weighted_edges_from(edges, weight="capacity")
    flow = networkx.algorithms.flow.boykov_kolmogorov  # the fastest of its algorithms on such graphs
    _, (_, beyond) = networkx.minimum_cut(graph, SOURCE, SINK, flow_func=flow)
    return beyond  # type: ignore[no-any-return]
