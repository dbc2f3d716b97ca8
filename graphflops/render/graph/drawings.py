"""A graph as a picture, as a page, and in the languages of Graphviz and Mermaid."""

from __future__ import annotations

from graphflops.errors import OptionError
from graphflops.render.graph.tables import SHADES, Labels, sentences
from graphflops.render.picture.page import page
from graphflops.render.picture.svg import svg as picture
from graphflops.render.text import safe
from graphflops.report import Report
from graphflops.structure.answer import Answer, Part, Unused, ask
from graphflops.structure.queries import part

_EDGES = 500  # that Mermaid draws on GitHub
# As Graphviz's blues9.
_BLUES = ("f7fbff", "deebf7", "c6dbef", "9ecae1", "6baed6", "4292c6", "2171b5", "08519c", "08306b")
_DARK = 5  # shade from which on text is white


def dot_of_report(report: Report, *, depth: int | None = None) -> str:
    """The modules of a report for Graphviz, `depth` levels in (None: as many as a page holds)."""
    return dot(ask(report, depth=depth))


def dot(answer: Answer) -> str:
    """A graph for Graphviz, `dot -Tsvg`. The darker a node, the larger its share; stages are boxes around nodes."""
    graph, labels = answer.graph, Labels(answer.graph, answer.by)
    numbers = {name: f"n{number}" for number, name in enumerate(graph)}
    lines = [
        "digraph graphflops {",
        f"  label={_quoted(safe(graph.graph.get('name', 'program')))};",
        '  labelloc=t; rankdir=TB; node [shape=box, style="rounded,filled", fontname=Helvetica, fontsize=11];',
        "  edge [fontname=Helvetica, fontsize=9, color=gray40, fontcolor=gray30];",
    ]
    for name, data in graph.nodes(data=True):
        text, shade = _quoted("\n".join(labels.node(data))), labels.shade(data)
        if data["kind"] in ("call", "module"):
            look = f"colorscheme=blues9, fillcolor={shade}, fontcolor={'white' if shade > _DARK else 'black'}"
            look += ", color=red" if data["exact"] != "exact" else ", penwidth=3" if "status" in data else ""
        else:
            look = "shape=plain, style=solid"
        node = f"{numbers[name]} [label={text}, {look}];"
        stage = data.get("stage")
        lines.append(
            f"  {node}"
            if stage is None
            else f'  subgraph cluster_{stage} {{ label="stage {stage}"; {node} }}'
        )
    for maker, user, data in graph.edges(data=True):
        label = f" [label={_quoted(text)}]" if (text := labels.edge(data)) else ""
        lines.append(f"  {numbers[maker]} -> {numbers[user]}{label};")
    return "\n".join([*lines, "}", ""])


def mermaid(answer: Answer) -> str:
    """A graph for Mermaid, which GitHub draws in a `mermaid` block. OptionError for one that is too large for it."""
    graph, labels = answer.graph, Labels(answer.graph, answer.by)
    if graph.number_of_edges() > _EDGES:
        what = f"Mermaid draws at most {_EDGES} edges, and this graph has {graph.number_of_edges():,}"
        raise OptionError(f"{what}: take --level module, a smaller --depth, or --only one module")
    numbers = {name: f"n{number}" for number, name in enumerate(graph)}
    lines = ["flowchart TB"]
    stages: dict[int, list[str]] = {}
    for name, data in graph.nodes(data=True):
        text = "<br/>".join(map(_escaped, labels.node(data)))
        is_cost = data["kind"] in ("call", "module")
        node = (
            f'{numbers[name]}["{text}"]:::s{labels.shade(data)}'
            if is_cost
            else f'{numbers[name]}(["{text}"])'
        )
        stages.setdefault(data.get("stage", 0), []).append(f"  {node}")
        lines += [f"  style {numbers[name]} stroke-width:4px"] if "status" in data else []
    for stage, nodes in stages.items():
        lines += [f'  subgraph stage{stage} ["stage {stage}"]', *nodes, "  end"] if stage else nodes
    for maker, user, data in graph.edges(data=True):
        text = _escaped(labels.edge(data))
        label = f'|"{text}"|' if text else ""
        lines.append(f"  {numbers[maker]} -->{label} {numbers[user]}")
    for shade in range(1, SHADES + 1):
        lines.append(
            f"  classDef s{shade} fill:#{_BLUES[shade - 1]},stroke:#555,color:{'#fff' if shade > _DARK else '#000'}"
        )
    return "\n".join([*lines, ""])


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
    return "".join(c if c.isalnum() or c in " .,:()+-*/%_" else f"#{ord(c)};" for c in text)
