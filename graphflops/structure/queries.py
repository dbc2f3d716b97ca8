"""Questions about the graph of calls: what depends on a value, what lies between two modules, what nothing reads.

Also the most costly chain of calls, what runs beside it, and the calls that everything passes through.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any, Literal, NamedTuple

import networkx

from graphflops.base.patterns import matches_module, modules_around
from graphflops.errors import ModelError, OptionError, shown
from graphflops.ops import operator
from graphflops.tensor import grouped

Quantity = Literal["flops", "bytes", "time"]


def part(graph: networkx.MultiDiGraph, names: Iterable[str]) -> networkx.MultiDiGraph:
    """The part of the graph with these nodes, in program order, which `MultiDiGraph.subgraph` may not keep."""
    return networkx.restricted_view(graph, set(graph).difference(names), [])


def named(graph: networkx.MultiDiGraph, name: str) -> set[str]:
    """The nodes of a name: of a node, of a weight or input of the model, or a pattern of modules with all in them.

    Raises ModelError, which suggests similar names, where there are none.
    """
    if name in graph:
        return tied(graph, {name})
    nodes = graph.nodes(data=True)
    modules = grouped((data.get("module", ""), node) for node, data in nodes if data["kind"] == "call")
    labels = grouped((data["label"], node) for node, data in nodes if data["kind"] != "call")
    found = [one for label, group in labels.items() if matches_module(name, label) for one in group]
    for module, group in modules.items():
        if matches_module(name, module) or matches_module(f"{name}.**", module):
            found += group
    if not found:
        outer = (around for module in modules for around in modules_around(module))
        words = {*modules, *outer, *graph, *labels}
        alike = [shown(word) for word in get_close_matches(name, words, n=3)]
        advice = f": did you mean {' or '.join(alike)}?" if alike else ""
        raise ModelError(f"no module, call, weight or input is called {shown(name)}{advice}")
    return tied(graph, {*found})


def tied(graph: networkx.MultiDiGraph, names: set[str]) -> set[str]:
    """These nodes, and the weights that share the memory of one of them."""
    weights = [(node, data) for node, data in graph.nodes(data=True) if data["kind"] == "weight"]
    owners = grouped((data.get("tied_to", data["label"]), node) for node, data in weights)
    return names.union(*(group for group in owners.values() if not names.isdisjoint(group)))


def needs(graph: networkx.MultiDiGraph, names: Iterable[str]) -> set[str]:
    """These nodes and all that they depend on, weights and inputs among them."""
    return uses(graph.reverse(copy=False), names)


def uses(graph: networkx.MultiDiGraph, names: Iterable[str]) -> set[str]:
    """These nodes and all that depends on them."""
    return set(chain.from_iterable(networkx.bfs_layers(graph, set(names))))


def between(graph: networkx.MultiDiGraph, first: Iterable[str], last: Iterable[str]) -> set[str]:
    """The nodes between the first and the last ones: those that depend on `first` and that `last` needs, without both."""
    first, last = set(first), set(last)
    return (uses(graph, first) & needs(graph, last)) - first - last


def unused(graph: networkx.MultiDiGraph) -> set[str]:
    """Weights and inputs that nothing reads, and calls that no result of the program depends on.

    A call that writes its operand, or that has no result at all, has an effect, and counts as a result. Raises ModelError
    for the graph of a saved report, which does not list what nothing reads.
    """
    if graph.graph.get("saved"):
        raise ModelError("a saved report does not list what nothing reads: give the model file")
    ends = []
    for node, data in graph.nodes(data=True):
        op = operator(data["op"]) if data["kind"] == "call" else None
        has_effect = op is not None and (op.writes_operands or op.is_exchange or not data["results"])
        if data["kind"] == "output" or has_effect:
            ends.append(node)
    return set(graph) - tied(graph, needs(graph, ends))


def ticks(data: Mapping[str, Any], by: str) -> int:
    """A quantity of a node as an integer, a time in 10⁻¹⁵ s, because sums of integers can be compared exactly."""
    found: int = round(data.get(by, 0) * (10**15 if by == "time" else 1))
    return found


def cost(graph: networkx.MultiDiGraph, names: Iterable[str], by: str) -> tuple[float, int]:
    """The sum of a quantity over calls at the known sizes, and the number of calls for which it is not known.

    Raises OptionError for times where no device is named.
    """
    if by == "time" and "total_time" not in graph.graph:
        raise OptionError("times are those of a device: name one with --device")
    nodes = [graph.nodes[name] for name in names if graph.nodes[name]["kind"] == "call"]
    unknown = sum(node.get("exact") != "exact" or by not in node for node in nodes)
    return sum(node.get(by, 0) for node in nodes), unknown


def refuse_open(graph: networkx.MultiDiGraph, by: str) -> None:
    """Raises ModelError where costs depend on sizes without a value, OptionError for times without a device."""
    cost(graph, (), by)
    if f"total_{by}" not in graph.graph:
        raise ModelError(f"{by} depend on sizes that are left open: give them with --dim")


class CriticalPath(NamedTuple):
    """The most costly chain of calls that wait for one another: what no parallel device can shorten."""

    by: Quantity
    calls: tuple[str, ...]  # by name, in order
    cost: float  # in FLOPs, bytes or seconds
    whole: float  # of the program
    # The most costly connected group of other calls that depend on an input.
    branch: tuple[str, ...]
    branch_cost: float
    unknown: int  # calls in the program of unknown cost


def critical_path(graph: networkx.MultiDiGraph, by: Quantity = "flops") -> CriticalPath:
    """The critical path of the graph of calls. Raises as `queries.refuse_open` does."""
    refuse_open(graph, by)
    calls = [name for name, data in graph.nodes(data=True) if data["kind"] == "call"]
    whole, unknown = cost(graph, calls, by)
    among, steps = graph.subgraph(calls), networkx.DiGraph()
    start = ("start",)  # a tuple, so that no call has that name
    # Of chains with equal costs, the one with the most calls wins: it begins at an input and ends at a result.
    weights = {name: ticks(graph.nodes[name], by) * (len(calls) + 1) + 1 for name in calls}
    steps.add_weighted_edges_from((start, name, weights[name]) for name in calls)
    steps.add_weighted_edges_from((maker, user, weights[user]) for maker, user in among.edges())
    path = networkx.dag_longest_path(steps)[1:] if calls else []
    place = {name: number for number, name in enumerate(calls)}
    # Subgraphs have no fixed order.
    beside = part(graph, set(data_flow(graph)) & place.keys() - set(path))
    groups = [sorted(group, key=place.__getitem__) for group in networkx.weakly_connected_components(beside)]
    branch = max(groups, key=lambda group: cost(graph, group, by)[0], default=[])
    figures = (cost(graph, path, by)[0], whole, tuple(branch), cost(graph, branch, by)[0])
    return CriticalPath(by, tuple(path), *figures, unknown)


class Bottleneck(NamedTuple):
    """A call whose result everything passes through on the way from an input to the result of the program."""

    call: str
    bytes: int | None  # of the values that others read of it; None where that is not known
    flops: int  # of it and of all calls it depends on


class Bottlenecks(NamedTuple):
    """Bottlenecks between an input and an output, the fewest bytes first; beside: inputs that enter past some of them."""

    input: str
    output: str
    found: tuple[Bottleneck, ...]
    beside: tuple[str, ...]


def bottlenecks(graph: networkx.MultiDiGraph) -> Bottlenecks:
    """The dominators of the main result (the one that needs most calls) from the input that has most of them.

    Calls that only read sizes do not depend on an input. Dominators that move no bytes are left out. Raises ModelError where
    no result depends on an input.
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
        # FLOPs of the node and of all it needs that no earlier dominator needed; `before` adds them up
        waiting, flops = [name], 0
        while waiting:
            node = waiting.pop()
            if node not in needed:
                needed.add(node)
                flops += graph.nodes[node].get("flops", 0)
                waiting += graph.pred[node]
        before += flops
        if graph.nodes[name]["kind"] == "call" and graph.nodes[name].get("bytes") != 0:
            # bytes of each value that others read; None where one is not known
            sizes = {data["value"]: data.get("bytes") for _, _, data in flow.out_edges(name, data=True)}
            found.append(Bottleneck(name, None if None in sizes.values() else sum(sizes.values()), before))
    found.sort(key=lambda one: (one.bytes is None, one.bytes, one.flops))
    return Bottlenecks(source, end, tuple(found), tuple([name for name in chains if name != source]))


def _dominators(flow: networkx.MultiDiGraph, source: str, end: str) -> list[str]:
    """The nodes on every path from `source` to `end`, in order, without these two."""
    above = networkx.immediate_dominators(flow, source)
    found: list[str] = []
    while (end := above[end]) is not None and end != source:
        found.append(end)
    return found[::-1]


def data_flow(graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
    """The part of the graph that depends on the contents of inputs, without calls that only read sizes."""
    blind = {name for name, op in graph.nodes(data="op", default="") if op and operator(op).reads_sizes}
    open_ = networkx.restricted_view(graph, blind, [])
    inputs = [name for name, data in open_.nodes(data=True) if data["kind"] == "input"]
    return part(graph, uses(open_, inputs) - blind)
