"""The longest chain of calls, what runs beside it, and the calls that everything passes through."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from graphflops.errors import ModelError
from graphflops.structure.queries import carries_data, cost, needs, part, refuse_open, ticks, uses

if TYPE_CHECKING:
    import networkx

    from graphflops.structure.queries import Quantity


class CriticalPath(NamedTuple):
    """The most costly chain of calls that wait for one another: what no parallel device can shorten.

    calls: by name, in order. cost, whole: of the chain and of the program, in FLOPs, bytes or seconds. branch: of the calls
    beside the chain that depend on an input and hang together without it, the most costly ones.
    unknown: calls in the program of unknown cost.
    """

    by: Quantity
    calls: tuple[str, ...]
    cost: float
    whole: float
    branch: tuple[str, ...]
    branch_cost: float
    unknown: int


def critical_path(graph: networkx.MultiDiGraph, by: Quantity = "flops") -> CriticalPath:
    """The critical path of the graph of calls. Raises as `queries.refuse_open` does."""
    import networkx

    refuse_open(graph, by)
    calls = [name for name, data in graph.nodes(data=True) if data["kind"] == "call"]
    whole, unknown = cost(graph, calls, by)
    among, steps = graph.subgraph(calls), networkx.DiGraph()
    start = ("start",)  # no call is named by a tuple
    # Of chains of one cost the one of most calls, which begins at an input and ends at a result.
    weights = {name: ticks(graph.nodes[name], by) * (len(calls) + 1) + 1 for name in calls}
    steps.add_weighted_edges_from((start, name, weights[name]) for name in calls)
    steps.add_weighted_edges_from((maker, user, weights[user]) for maker, user in among.edges())
    path = networkx.dag_longest_path(steps)[1:] if calls else []
    place = {name: number for number, name in enumerate(calls)}
    # Subgraphs have the order of hashes.
    beside = part(graph, set(data_flow(graph)) & place.keys() - set(path))
    groups = [sorted(group, key=place.__getitem__) for group in networkx.weakly_connected_components(beside)]
    branch = max(groups, key=lambda group: cost(graph, group, by)[0], default=[])
    figures = (cost(graph, path, by)[0], whole, tuple(branch), cost(graph, branch, by)[0])
    return CriticalPath(by, tuple(path), *figures, unknown)


class Bottleneck(NamedTuple):
    """A call whose result everything passes through on the way from an input to the result of the program.

    bytes: of the values that others read of it; None where that is not known. flops: of it and of all calls it depends on.
    """

    call: str
    bytes: int | None
    flops: int


class Bottlenecks(NamedTuple):
    """Bottlenecks between an input and an output, the fewest bytes first; beside: inputs that enter past some of them."""

    input: str
    output: str
    found: tuple[Bottleneck, ...]
    beside: tuple[str, ...]


def bottlenecks(graph: networkx.MultiDiGraph) -> Bottlenecks:
    """The dominators of the main result, which needs most calls, from the input with the longest chain of them.

    What asks for sizes alone does not depend on an input; calls that move nothing are left out. Raises ModelError where no
    result depends on an input.
    """
    flow = data_flow(graph)
    outputs = ((name, data["role"]) for name, data in flow.nodes(data=True) if data["kind"] == "output")
    ends = [name for name, role in outputs if role in ("user", "loss")]
    sources = [name for name, data in flow.nodes(data=True) if data["kind"] == "input"]
    upstream = {end: needs(flow, [end]) for end in ends}
    end = max(ends, key=lambda name: len(upstream[name]), default="")
    chains = {name: _dominators(flow, name, end) for name in sources if end and name in upstream[end]}
    source = max(chains, key=lambda name: len(chains[name]), default=None)
    if source is None:
        raise ModelError("no result of the program depends on an input")
    found, before, needed = [], 0, set[str]()
    for name in chains[source]:
        before += _added_flops(graph, name, needed)
        if graph.nodes[name]["kind"] == "call" and graph.nodes[name].get("bytes") != 0:
            found.append(Bottleneck(name, result_bytes(flow, name), before))
    found.sort(key=lambda one: (one.bytes is None, one.bytes, one.flops))
    beside = tuple([name for name in chains if name != source])
    return Bottlenecks(source, end, tuple(found), beside)


def data_flow(graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
    """The part of the graph that depends on what the inputs hold, without the calls that ask for sizes alone."""
    import networkx

    blind = {name for name in graph if not carries_data(graph, name)}
    open_ = networkx.restricted_view(graph, blind, [])
    inputs = [name for name, data in open_.nodes(data=True) if data["kind"] == "input"]
    return part(graph, uses(open_, inputs) - blind)


def result_bytes(graph: networkx.MultiDiGraph, call: str) -> int | None:
    """Bytes of the values of a call that others read, each once; None where one is not known."""
    sizes = {data["value"]: data.get("bytes") for _, _, data in graph.out_edges(call, data=True)}
    return None if None in sizes.values() else sum(sizes.values())


def _added_flops(graph: networkx.MultiDiGraph, name: str, needed: set[str]) -> int:
    """FLOPs of the node and of what it needs, but for the nodes already needed, to which they are added."""
    waiting, flops = [name], 0
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            flops += graph.nodes[node].get("flops", 0)
            waiting += graph.pred[node]
    return flops


def _dominators(flow: networkx.MultiDiGraph, source: str, end: str) -> list[str]:
    """The nodes on every path from one to the other, in order, without these."""
    import networkx

    above = dict(networkx.immediate_dominators(flow, source))
    found: list[str] = []
    node = above[end]
    while node is not None and node != source:
        found.append(node)
        node = above[node]
    return found[::-1]
