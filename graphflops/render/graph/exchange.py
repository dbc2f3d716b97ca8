"""A graph for other programs: GraphML and node-link JSON, which networkx reads back as they were."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any

from graphflops.render.graph.tables import listing, sentences

if TYPE_CHECKING:
    import networkx

    from graphflops.structure.answer import Answer

_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def graphml(answer: Answer) -> str:
    """GraphML, for yEd, Gephi and `networkx.read_graphml(path, force_multigraph=True)`."""
    import networkx

    file = io.BytesIO()
    networkx.write_graphml_xml(_printable(answer.graph), file)
    return file.getvalue().decode()


def node_link(answer: Answer) -> str:
    """Node-link JSON, for `networkx.node_link_graph(data, edges="edges")`. `answer`: in words and rows."""
    import networkx

    data = networkx.node_link_data(_printable(answer.graph), edges="edges")
    found = listing(answer, exact=True)
    rows = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    return json.dumps({**data, "answer": {"text": sentences(answer), "rows": rows}}, indent=1) + "\n"


def _printable(graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
    """The graph with what XML and UTF-8 cannot hold in the names of a file spelled out; itself where there is none of it."""
    texts = [
        text
        for name, data in graph.nodes(data=True)
        for text in (name, *data.values())
        if isinstance(text, str)
    ]
    texts += [
        text for _, _, data in graph.edges(data=True) for text in data.values() if isinstance(text, str)
    ]
    texts += [text for text in graph.graph.values() if isinstance(text, str)]
    if not any(_NOT_IN_XML.search(text) for text in texts):
        return graph
    made = type(graph)(**_told(graph.graph))
    made.add_nodes_from((_inert(name), _told(data)) for name, data in graph.nodes(data=True))
    made.add_edges_from(
        (_inert(a), _inert(b), key, _told(data)) for a, b, key, data in graph.edges(keys=True, data=True)
    )
    return made


def _told(data: dict[str, Any]) -> dict[str, Any]:
    return {key: _inert(value) if isinstance(value, str) else value for key, value in data.items()}


def _inert(text: str) -> str:
    return _NOT_IN_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
