"""Questions to the graph of calls: what depends on a value, what lies between two modules, what nothing reads."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from graphflops.base.patterns import matches_module, modules_around
from graphflops.errors import ModelError, OptionError, shown
from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import networkx

Quantity = Literal["flops", "bytes", "time"]


def part(graph: networkx.MultiDiGraph, names: Iterable[str]) -> networkx.MultiDiGraph:
    """The part of the graph with these nodes in program order, which `MultiDiGraph.subgraph` loses where they are few."""
    import networkx

    return networkx.restricted_view(graph, set(graph).difference(names), [])


def named(graph: networkx.MultiDiGraph, name: str) -> set[str]:
    """Nodes by the name of a call or value, of a weight or input in the model, or the pattern of a module, and all in it.

    Raises ModelError, with what is spelled alike, where there are none.
    """
    if name in graph:
        return tied(graph, {name})
    found, within = set[str](), f"{name}.**"
    known: dict[str, bool] = {}
    for node, data in graph.nodes(data=True):
        module = data.get("module", "")
        if data["kind"] != "call":
            if matches_module(name, data["label"]):
                found.add(node)
        elif module not in known:
            known[module] = matches_module(name, module) or matches_module(within, module)
        if data["kind"] == "call" and known[module]:
            found.add(node)
    if not found:
        outer = (around for module in known for around in modules_around(module))
        words = dict.fromkeys([*known, *outer, *graph])
        words |= dict.fromkeys(data["label"] for _, data in graph.nodes(data=True) if data["kind"] != "call")
        alike = [shown(word) for word in get_close_matches(name, words, n=3)]
        advice = f": did you mean {' or '.join(alike)}?" if alike else ""
        raise ModelError(f"no module, call, weight or input is called {shown(name)}{advice}")
    return tied(graph, found)


def tied(graph: networkx.MultiDiGraph, names: set[str]) -> set[str]:
    """These nodes, and the weights that share the memory of one of them."""
    owners: dict[str, set[str]] = {}
    for node, data in graph.nodes(data=True):
        if data["kind"] == "weight":
            owners.setdefault(data.get("tied_to", data["label"]), set()).add(node)
    shared = (group for group in owners.values() if len(group) > 1)
    return names.union(*(group for group in shared if not group.isdisjoint(names)))


def needs(graph: networkx.MultiDiGraph, names: Iterable[str]) -> set[str]:
    """These nodes and all that they depend on, weights and inputs among them."""
    return uses(graph.reverse(copy=False), names)


def uses(graph: networkx.MultiDiGraph, names: Iterable[str]) -> set[str]:
    """These nodes and all that depends on them."""
    import networkx

    return set(chain.from_iterable(networkx.bfs_layers(graph, set(names))))


def between(graph: networkx.MultiDiGraph, first: Iterable[str], last: Iterable[str]) -> set[str]:
    """What the last nodes need and depends on the first ones, both left out; empty where one does not lead to the other."""
    first, last = set(first), set(last)
    return (uses(graph, first) & needs(graph, last)) - first - last


def unused(graph: networkx.MultiDiGraph) -> set[str]:
    """Weights and inputs that nothing reads, and calls that no result of the program depends on.

    A call that writes its operand, or that has no result at all, has an effect, and counts as a result. Raises ModelError
    for the graph of a saved report, which does not list what nothing reads.
    """
    if graph.graph.get("saved"):
        raise ModelError("a saved report does not list what nothing reads: give the model file")
    ends = [node for node, data in graph.nodes(data=True) if data["kind"] == "output" or _has_effect(data)]
    return set(graph) - tied(graph, needs(graph, ends))


def ticks(data: Mapping[str, Any], by: str) -> int:
    """A quantity of a node as an integer, of a time 10⁻¹⁵ s: sums of integers that are equal are known to be."""
    found: int = round(data.get(by, 0) * (10**15 if by == "time" else 1))
    return found


def cost(graph: networkx.MultiDiGraph, names: Iterable[str], by: str) -> tuple[float, int]:
    """The sum of a quantity over calls at the known sizes, and for how many of them it is not known.

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


def carries_data(graph: networkx.MultiDiGraph, user: str) -> bool:
    """Whether a node reads the contents of its operands: a call that asks for sizes alone does not."""
    return not _reads_sizes(graph.nodes[user].get("op", ""))


@lru_cache(maxsize=4096)
def _reads_sizes(op: str) -> bool:
    return bool(op) and operator(op).reads_sizes


def _has_effect(data: dict[str, Any]) -> bool:
    if data["kind"] != "call":
        return False
    op = operator(data["op"])
    return op.writes_operands or op.is_exchange or not data["results"]
