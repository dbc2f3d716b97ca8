"""What two programs differ in, and where a run differs from its analysis, as statuses of the nodes of one graph."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from graphflops.errors import OptionError
from graphflops.render.picture.page import page

if TYPE_CHECKING:
    from collections.abc import Iterable

    import networkx

    from graphflops.comparison.result import Comparison
    from graphflops.report import Report, Row
    from graphflops.runtime.validation import Validation


def joined(found: Comparison, old: Report) -> networkx.MultiDiGraph:
    """The calls of the new program and those that are gone, each `new`, `gone`, `changed` or without a status; edges alike.

    old: the old program under the module paths of the new one. A call that reads other values than before is changed, too.
    """
    graph, before = found.new.graph(level="call").copy(), old.graph(level="call")
    status, gone, pairs = _statuses(found)
    for name, word in status.items():
        if name in graph:
            graph.nodes[name]["status"] = word
    kept = (
        _by_module(before, gone),
        _by_module(graph, {name for name, word in status.items() if word == "new"}),
    )
    for module, names in kept[0].items():
        others = kept[1].get(module, [])
        if len(names) == len(others):
            pairs.update(zip(names, others, strict=True))
    for name, facts in before.nodes(data=True):
        if name in gone or (name not in pairs and facts["kind"] == "call"):
            pairs[name] = f"{name} (gone)"
            graph.add_node(pairs[name], **facts, status="gone")
        elif (
            pairs.setdefault(name, name) in graph
            and status.get(pairs[name]) == "changed"
            and "flops" in facts
        ):
            graph.nodes[pairs[name]]["note"] = f"before, {facts['flops']:,} FLOPs"
    made = {name for name, facts in graph.nodes(data=True) if facts.get("status") in ("new", "gone")}
    was = {(pairs[a], pairs[b]) for a, b in before.edges() if pairs[a] in graph and pairs[b] in graph}
    for start, end, facts in graph.edges(data=True):
        if (start, end) not in was and not facts["weight"]:
            _rewired(graph, facts, end, made, "new")
    for start, end, facts in before.edges(data=True):
        ends = pairs[start], pairs[end]
        if ends in was and not facts["weight"] and not graph.has_edge(*ends):
            own = dict(facts)
            _rewired(graph, own, ends[1], made, "gone")
            graph.add_edge(*ends, **own)
    return graph


def _rewired(
    graph: networkx.MultiDiGraph, facts: dict[str, object], end: str, made: set[str], status: str
) -> None:
    facts["status"] = status
    if end not in made and graph.nodes[end]["kind"] == "call":
        graph.nodes[end].setdefault("status", "changed")


def _statuses(found: Comparison) -> tuple[dict[str, str], set[str], dict[str, str]]:
    """The status of calls of the new program, the calls that are gone, and by changed call that of the new program."""
    status: dict[str, str] = {}
    gone: set[str] = set()
    pairs: dict[str, str] = {}
    for change in found.modules:
        if change.whole:
            if change.before is not None and change.status != "moved":
                gone |= _within(found.old.rows, change.before) if change.after is None else set()
            if change.after is not None:
                word = "new" if change.before is None else "changed"
                status.update(dict.fromkeys(_within(found.new.rows, change.after), word))
        for call in change.calls:
            if call.after is None and call.before is not None:
                gone.add(call.before.node)
            elif call.after is not None:
                status[call.after.node] = "new" if call.before is None else "changed"
                if call.before is not None:
                    pairs[call.before.node] = call.after.node
    return status, gone, pairs


def _within(rows: Iterable[Row], path: str) -> set[str]:
    return {row.node for row in rows if row.module == path or row.module.startswith(f"{path}.") or not path}


def _by_module(graph: networkx.MultiDiGraph, without: set[str]) -> dict[tuple[str, str], list[str]]:
    """Calls by module and operator, in program order; inputs, weights and results by label."""
    found = defaultdict(list)
    for name, facts in graph.nodes(data=True):
        if name not in without:
            is_call = facts["kind"] == "call"
            found[
                str(facts.get("module", "")) if is_call else facts["kind"],
                facts["op" if is_call else "label"],
            ].append(name)
    return found


def validated(report: Report, found: Validation) -> networkx.MultiDiGraph:
    """The calls of a report with the verdicts of a run of it, where these are not `equal`."""
    graph = report.graph(level="call")
    for node in found.nodes:
        if node.node in graph and node.verdict != "equal":
            graph.nodes[node.node].update(status=node.verdict, note=node.reason or node.verdict)
    return graph


def html(found: Validation) -> str:
    """A validation as a page: the picture of its program, marked where calls differ."""
    from graphflops.analysis import analyze
    from graphflops.render.validation import conclusion

    if not found.path:
        raise OptionError("a page of a validation needs the program as a file: this one was in memory")
    report = analyze(found.path, dims=dict(found.sizes))
    return page(validated(report, found), types=report.modules, said=[conclusion(found)])
