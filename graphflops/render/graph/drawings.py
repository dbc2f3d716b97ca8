"""A graph as a picture, as a page, and in the languages of Graphviz and Mermaid."""

from __future__ import annotations

from graphflops.errors import OptionError
from graphflops.render.graph.tables import sentences
from graphflops.render.picture.faces import Face, carried
from graphflops.render.picture.nest import Sheet, flat
from graphflops.render.picture.page import page
from graphflops.render.picture.svg import faces, whole
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
    sheet, shown = _boxes(answer)
    lines = [
        "digraph graphflops {",
        f"  label={_quoted(safe(answer.graph.graph.get('name', 'program')))};",
        '  labelloc=t; rankdir=TB; node [shape=box, style="rounded,filled", fontname=Helvetica, fontsize=11];',
        "  edge [fontname=Helvetica, fontsize=9, color=gray40, fontcolor=gray30];",
    ]
    for number, face in enumerate(shown):
        shade = _shade(face)
        look = f"colorscheme=blues9, fillcolor={shade}, fontcolor={'white' if shade > _DARK else 'black'}"
        look += ", color=red" if face.is_unknown else ", penwidth=3" if face.status else ""
        look = "shape=plain, style=solid" if face.kind == "port" else look
        node = f"n{number} [label={_quoted(chr(10).join(face.lines))}, {look}];"
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
    for number, face in enumerate(shown):
        text = "<br/>".join(map(_escaped, face.lines))
        node = f'(["{text}"])' if face.kind == "port" else f'["{text}"]:::s{_shade(face)}'
        stages.setdefault(face.stage or 0, []).append(f"  n{number}{node}")
        lines += [f"  style n{number} stroke-width:4px"] if face.status else []
    for stage, nodes in stages.items():
        lines += [f'  subgraph stage{stage} ["stage {stage}"]', *nodes, "  end"] if stage else nodes
    for (maker, user), values in sheet.links.items():
        text = _escaped(carried(values.values()))
        lines.append(f"  n{maker} -->" + (f'|"{text}"|' if text else "") + f" n{user}")
    for shade, color in enumerate(_BLUES, 1):
        lines.append(
            f"  classDef s{shade} fill:#{color},stroke:#555,color:{'#fff' if shade > _DARK else '#000'}"
        )
    return "\n".join([*lines, ""])


def _boxes(answer: Answer) -> tuple[Sheet, list[Face]]:
    """The boxes and lines of a graph, and what they show, as in its picture."""
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
