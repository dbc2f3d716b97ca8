"""What two programs differ in, and where a run differs from its analysis, as statuses of the nodes of one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import OptionError
from graphflops.render.picture.page import page
from graphflops.structure.build import Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    import networkx

    from graphflops.comparison.result import Comparison
    from graphflops.report import Report
    from graphflops.runtime.validation import Validation


def joined(found: Comparison, old: Report) -> networkx.MultiDiGraph:
    """The calls of the new program and those that are gone, each `new`, `gone`, `changed` or without a status; edges alike.

    old: the old program under the module paths of the new one. A call that reads other values than before is changed, too.
    """
    programs = Program(old), Program(found.new)
    before, graph = (program.calls for program in programs)
    pairs = _pairs(found, *programs)
    same = {*pairs.values()}
    changed = {id(call.after) for change in found.modules for call in change.calls if call.before is not None}
    places = dict(programs[1].found.calls)
    for name, facts in graph.nodes(data=True):
        if facts["kind"] == "call" and name not in same:
            facts["status"] = "new"
        elif facts["kind"] == "call" and id(found.new.rows[places[name]]) in changed:
            facts["status"] = "changed"
    for name, facts in before.nodes(data=True):
        if facts["kind"] == "call" and name not in pairs:
            pairs[name] = f"{name} (gone)"
            graph.add_node(pairs[name], **facts, status="gone")
            continue
        now = graph.nodes.get(pairs.setdefault(name, name), {})
        if now.get("status") == "changed" and "flops" in facts:
            now["note"] = f"before, {facts['flops']:,} FLOPs"
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


def _pairs(found: Comparison, before: Program, after: Program) -> dict[str, str]:
    """Nodes of the new program by those of the old one: calls, those that only moved within their module, and ends."""
    names, others = (
        {place: name for name, place in program.found.calls.items()} for program in (before, after)
    )
    pairs = {names[ours]: others[theirs] for ours, theirs in found.calls.items()}
    free: dict[object, list[str]] = {}
    same = {*pairs.values()}
    for name in [name for name in after.calls if name not in same]:
        free.setdefault(_likeness(after.calls.nodes[name]), []).append(name)
    for name, facts in before.calls.nodes(data=True):
        if name not in pairs and (alike := free.get(_likeness(facts))):
            pairs[name] = alike.pop(0)
    return pairs


def _likeness(facts: Mapping[str, object]) -> object:
    ends = facts["label"] if facts["kind"] != "call" else ""
    return ends, facts["kind"], *map(facts.get, ("module", "op", "flops", "bytes") if not ends else ())


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
