"""Answers about the structure of a model, in words and as a table, and its graph in formats that draw or read graphs."""

import io
import json
import re
from collections.abc import Iterable
from typing import Any, Literal

import networkx

from graphflops.base.units import memory, number, numbered, percent, unnumbered
from graphflops.errors import OptionError
from graphflops.render.document import Document
from graphflops.render.picture.nest import Sheet, flat
from graphflops.render.picture.svg import WORDS, Face, carried, faces, page, quantity, svg as picture, whole
from graphflops.render.summary import title
from graphflops.render.text import Listing, count_of, safe
from graphflops.report import Report
from graphflops.structure.answer import Answer, Cuts, Part, Unused, ask
from graphflops.structure.queries import Bottlenecks, CriticalPath, cost, part


def amount(data: dict[str, Any], name: str, *, exact: bool = False) -> str | float:
    """A quantity of a node: its number, else its formula; `?` where it is unknown, with `>=` where some of it is."""
    least = ">= " if data.get("exact") == "at least" else ""
    if data.get(name) is None:
        formula = data.get(f"{name}_formula")
        unknown = "" if data.get("exact", "exact") == "exact" else "?"
        return f"{least}{safe(formula, 40)}" if formula else "" if exact else unknown
    if exact:
        return data[name]  # type: ignore[no-any-return]
    return f"{least}{quantity(data[name], name)}"


_TOP = 25  # lines
Rows = list[tuple[str | float, ...]]


def document(answer: Answer, *, top: int | None = None) -> Document:
    """The answer in words and as a table of so many lines; for a spreadsheet all lines, numbers unrounded."""
    found, (first, *others) = listing(answer, exact=False), sentences(answer)
    lines = [_first(found, top or _TOP).table()] if found.rows else []
    return Document(lines, others, first, exact=lambda: listing(answer, exact=True))


def sentences(answer: Answer) -> list[str]:
    """The answer in words: one sentence a line."""
    found = answer.found
    if isinstance(found, CriticalPath):
        return _path(answer, found)
    if isinstance(found, Bottlenecks):
        others = _listed(answer, found.beside)
        beside = f"; other inputs reach past some of them: {others}" if found.beside else ""
        source, end = (safe(answer.calls.nodes[name]["label"]) for name in (found.input, found.output))
        return [f"{count_of(len(found.found), 'call')} on every way from {source} to {end}{beside}"]
    if isinstance(found, Cuts):
        told = [
            f"{count_of(len(found.stages), 'stage')}, the most costly {percent(found.imbalance, 1)} % above an equal share "
            f"of {_figure(found.by, found.whole)}: no cut in program order with as few bytes across is better balanced"
        ]
        lacking = sum(one.bytes is None for stage in found.stages for one in stage.crossing)
        if lacking:
            told.append(f"the bytes of {count_of(lacking, 'value')} that cross are not known")
        return told + _unknown(found.unknown)
    if isinstance(found, Unused) and not found.names:
        return ["every weight and input is read, and a result depends on every call"]
    graph = answer.calls
    calls = [name for name in found.names if graph.nodes[name]["kind"] == "call"]
    weights = [graph.nodes[name] for name in found.names if graph.nodes[name]["kind"] == "weight"]
    unknown = sum(graph.nodes[name]["exact"] == "unknown" for name in calls)
    held = number(sum(weight.get("parameters", 0) for weight in weights))
    of = "" if graph.graph.get("saved") else f" of {held} parameters"
    figures = (
        count_of(len(calls), "call"),
        _sum(graph, calls, "flops"),
        _sum(graph, calls, "bytes"),
        f"{count_of(len(weights), 'weight')}{of}",
    )
    return [f"{safe(found.title) or title(answer.report)}: {', '.join(figures)}", *_unknown(unknown)]


def listing(answer: Answer, *, exact: bool) -> Listing:
    """The table of the answer. exact: whole numbers, for programs."""
    found = answer.found
    if isinstance(found, Bottlenecks):
        return _bottlenecks(answer, found, exact)
    if isinstance(found, Cuts):
        return _stages(answer, found, exact)
    if isinstance(found, CriticalPath):
        on_path = [node for node, data in answer.graph.nodes(data=True) if "status" in data]
        return _nodes(answer.graph, on_path, exact)
    if isinstance(found, Unused):
        return _nodes(answer.calls, [node for node in answer.calls if node in found.names], exact)
    return _nodes(answer.graph, answer.graph, exact)


def _path(answer: Answer, found: CriticalPath) -> list[str]:
    least = "at least " if found.unknown else ""
    share, beside = percent(found.cost, found.whole), percent(found.branch_cost, found.whole)
    told = [
        f"the longest chain: {count_of(len(found.calls), 'call')}, {least}{_figure(found.by, found.cost)}, "
        f"{share or '0'} % of the program's {WORDS[found.by]}: no parallel device shortens it"
    ]
    if found.branch_cost:
        where, costs = _listed(answer, found.branch), _figure(found.by, found.branch_cost)
        told.append(f"the widest branch beside it: {where}, {costs}, {beside} %")
    return told + _unknown(found.unknown)


def _sum(graph: networkx.MultiDiGraph, calls: Iterable[str], by: Literal["flops", "bytes"]) -> str:
    whole, (amount, _) = graph.graph.get(f"total_{by}"), cost(graph, calls, by)
    if whole is None:
        return f"{WORDS[by]} that depend on open sizes"
    share = percent(amount, whole) if by == "flops" else ""
    return _figure(by, amount) + (f" ({share} %)" if share else " moved" * (by == "bytes"))


def _unknown(calls: int) -> list[str]:
    return [f"the cost of {count_of(calls, 'call')} is unknown, and in no figure"] if calls else []


def _nodes(graph: networkx.MultiDiGraph, nodes: Iterable[str], exact: bool) -> Listing:
    quantities = {"flops": "FLOPs", "bytes": "bytes", "parameters": "params"}
    quantities |= {"time": "time"} if "total_time" in graph.graph else {}
    rows: Rows = []
    for name in nodes:
        data = graph.nodes[name]
        read = ", ".join(dict.fromkeys(safe(graph.nodes[maker]["label"], 60) for maker in graph.pred[name]))
        figures = [amount(data, key, exact=exact) for key in quantities]
        called = name if data["kind"] in ("call", "module") else data["label"]
        count = data["count"] if exact else f"{data['count']:,}"
        rows.append((safe(called), data["kind"], count, *figures, read))
    return Listing(("node", "kind", "count", *quantities.values(), "reads"), rows)


def _bottlenecks(answer: Answer, found: Bottlenecks, exact: bool) -> Listing:
    """A line for each bottleneck, for a reader equal ones of repeated layers together."""
    graph, groups = answer.calls, dict[Any, list[Any]]()
    for one in found.found:
        data = graph.nodes[one.call]
        key = one.call if exact else (unnumbered(data.get("module", "")), data["label"], one.bytes)
        groups.setdefault(key, []).append(one)
    rows: Rows = []
    whole = graph.graph.get("total_flops", 0)
    for group in groups.values():
        first, label = group[0], safe(graph.nodes[group[0].call]["label"])
        modules = numbered([graph.nodes[one.call].get("module", "") for one in group])
        size: str | float = "" if first.bytes is None else first.bytes
        flops: str | float = first.flops
        if not exact:
            shares = dict.fromkeys(percent(one.flops, whole) for one in (first, group[-1]))
            size = "?" if first.bytes is None else memory(first.bytes)
            flops = " to ".join(f"{share or '0'} %" for share in shares) if whole else "?"
        rows.append((safe(first.call), safe(modules), label, len(group), size, flops))
    return Listing(("call", "module", "operator", "count", "bytes", "FLOPs up to it"), rows)


def _stages(answer: Answer, found: Cuts, exact: bool) -> Listing:
    rows: Rows = []
    for place, stage in enumerate(found.stages, 1):
        calls = [answer.calls.nodes[name] for name in stage.calls]
        working = [call for call in calls if call.get("bytes")] or calls
        first, last = (safe(call.get("module", ""), 40) or "(model)" for call in (working[0], working[-1]))
        sent = sum(one.bytes or 0 for one in stage.crossing)
        least = ">= " if any(one.bytes is None for one in stage.crossing) else ""
        number, *figures = (
            pair[not exact]
            for pair in (
                (len(calls), f"{len(calls):,}"),
                (stage.cost, quantity(stage.cost, found.by)),
                (stage.cost / found.whole, percent(stage.cost, found.whole)),
                (stage.weight_bytes, memory(stage.weight_bytes)),
                (sent, f"{least}{memory(sent)}" if stage.crossing else ""),
            )
        )
        more = " …" if len(stage.crossing) > 3 else ""
        values = ", ".join(safe(one.value, 40) for one in stage.crossing[:3]) + more
        rows.append((place, number, first, last, *figures, values))
    heads = ("stage", "calls", "from", "to", WORDS[found.by], "%", "weights", "hands on", "values")
    return Listing(heads, rows)


def _figure(by: str, amount: float) -> str:
    return quantity(amount, by) + " FLOPs" * (by == "flops")


def _listed(answer: Answer, names: Iterable[str]) -> str:
    """Where calls are: their modules, the first two and the last of many."""
    nodes = [answer.calls.nodes[name] for name in names]
    places = [*dict.fromkeys(safe(node.get("module") or node["label"], 60) for node in nodes)]
    if len(places) <= 3:
        return ", ".join(places)
    return f"{places[0]}, {places[1]} … {places[-1]} ({len(places):,} modules)"


def _first(listing: Listing, top: int) -> Listing:
    left = len(listing.rows) - top
    if left <= 0:
        return listing
    more = (f"… {left:,} more", *[""] * (len(listing.heads) - 1))
    return Listing(listing.heads, [*listing.rows[:top], more], listing.figures)


_EDGES = 500  # that Mermaid draws on GitHub
# As Graphviz's blues9.
_BLUES = ("f7fbff", "deebf7", "c6dbef", "9ecae1", "6baed6", "4292c6", "2171b5", "08519c", "08306b")
_DARK = 5  # shade from which on text is white


def dot_of_report(report: Report, *, depth: int | None = None) -> str:
    """The modules of a report for Graphviz, `depth` levels in (None: as many as a page holds)."""
    return dot(ask(report, depth=depth))


def dot(answer: Answer) -> str:
    """A graph for Graphviz, `dot -Tsvg`. The darker a node, the larger its share; stages are boxes around nodes."""
    sheet, shown = _boxes(answer)
    lines = [
        "digraph graphflops {",
        f"  label={_quoted(safe(answer.graph.graph.get('name', 'program')))};",
        '  labelloc=t; rankdir=TB; node [shape=box, style="rounded,filled", fontname=Helvetica, fontsize=11];',
        "  edge [fontname=Helvetica, fontsize=9, color=gray40, fontcolor=gray30];",
    ]
    for place, face in enumerate(shown):
        shade = _shade(face)
        look = f"colorscheme=blues9, fillcolor={shade}, fontcolor={'white' if shade > _DARK else 'black'}"
        look += ", color=red" if face.is_unknown else ", penwidth=3" if face.status else ""
        look = "shape=plain, style=solid" if face.kind == "port" else look
        node = f"n{place} [label={_quoted(chr(10).join(face.lines))}, {look}];"
        around = f'subgraph cluster_{face.stage} {{ label="stage {face.stage}"; {node} }}'
        lines.append(f"  {node if face.stage is None else around}")
    for (maker, user), values in sheet.links.items():
        lines.append(f"  n{maker} -> n{user} [label={_quoted(carried(values.values()))}];")
    return "\n".join([*lines, "}", ""])


def mermaid(answer: Answer) -> str:
    """A graph for Mermaid, which GitHub draws in a `mermaid` block. OptionError for one that is too large for it."""
    sheet, shown = _boxes(answer)
    if len(sheet.links) > _EDGES:
        what = f"Mermaid draws at most {_EDGES} edges, and this graph has {len(sheet.links):,}"
        raise OptionError(f"{what}: take --level module, a smaller --depth, or --only one module")
    lines = ["flowchart TB"]
    stages: dict[int, list[str]] = {}
    for place, face in enumerate(shown):
        text = "<br/>".join(map(_escaped, face.lines))
        node = f'(["{text}"])' if face.kind == "port" else f'["{text}"]:::s{_shade(face)}'
        stages.setdefault(face.stage or 0, []).append(f"  n{place}{node}")
        lines += [f"  style n{place} stroke-width:4px"] if face.status else []
    for stage, nodes in stages.items():
        lines += [f'  subgraph stage{stage} ["stage {stage}"]', *nodes, "  end"] if stage else nodes
    for (maker, user), values in sheet.links.items():
        text = _escaped(carried(values.values()))
        lines.append(f"  n{maker} -->" + (f'|"{text}"|' if text else "") + f" n{user}")
    for shade, color in enumerate(_BLUES, 1):
        written = "#fff" if shade > _DARK else "#000"
        lines.append(f"  classDef s{shade} fill:#{color},stroke:#555,color:{written}")
    return "\n".join([*lines, ""])


def _boxes(answer: Answer) -> tuple[Sheet, list[Face]]:
    sheet = flat(answer.graph)
    return sheet, faces(sheet, answer.by, whole(answer.graph, answer.by))


def _shade(face: Face) -> int:
    """How dark a box is, from 1 to 9."""
    return 1 + round(face.share * (len(_BLUES) - 1))


def svg(answer: Answer) -> str:
    """A graph as an SVG picture that stands alone."""
    return picture(answer.graph, by=answer.by)


def html(answer: Answer) -> str:
    """A graph as a page without network. Modules open into their calls, unless a depth was asked for."""
    graph, found = answer.graph, answer.found
    if "depth" not in graph.graph:
        is_part = isinstance(found, Part) and not isinstance(found, Unused)
        graph = part(answer.calls, found.names) if isinstance(found, Part) and is_part else answer.calls
    return page(graph, by=answer.by, types=answer.report.modules, said=sentences(answer))


def _quoted(text: str) -> str:
    r"""A quoted string for Graphviz, in which only line breaks are escapes (`\n`)."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _escaped(text: str) -> str:
    """A text in which Mermaid reads no markup: the characters of its syntax and of HTML by their numbers."""
    return "".join(c if c.isalnum() or c in " .,:()+-*/%_×·≥" else f"#{ord(c)};" for c in text)


_IN_XML = re.compile("[\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CHARACTER = re.compile("&#([0-9]+);|[^ -~]")


def graphml(answer: Answer) -> str:
    r"""GraphML, for yEd, Gephi and `networkx.read_graphml(path, force_multigraph=True)`.

    What XML cannot hold in the names of a file is spelled out, `\x1b`.
    """
    file = io.BytesIO()
    networkx.write_graphml_xml(answer.graph, file, encoding="us-ascii")
    return _CHARACTER.sub(_spelled_out, file.getvalue().decode())


def node_link(answer: Answer) -> str:
    """Node-link JSON, for `networkx.node_link_graph(data, edges="edges")`. `answer`: in words and rows."""
    data = networkx.node_link_data(answer.graph, edges="edges")
    found = listing(answer, exact=True)
    rows = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    return json.dumps({**data, "answer": {"text": sentences(answer), "rows": rows}}, indent=1) + "\n"


def _spelled_out(found: re.Match[str]) -> str:
    character = chr(int(found[1])) if found[1] else found[0]
    return found[0] if _IN_XML.match(character) else character.encode("unicode_escape").decode()
