"""A graph for other programs: GraphML and node-link JSON, which networkx reads back as they were."""

from __future__ import annotations

import io
import json
import re

from graphflops.render.graph.tables import listing, sentences
from graphflops.structure.answer import Answer

_IN_XML = re.compile("[\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CHARACTER = re.compile("&#([0-9]+);|[^ -~]")


def graphml(answer: Answer) -> str:
    r"""GraphML, for yEd, Gephi and `networkx.read_graphml(path, force_multigraph=True)`.

    What XML cannot hold in the names of a file is spelled out, `\x1b`.
    """
    import networkx

    file = io.BytesIO()
    networkx.write_graphml_xml(answer.graph, file, encoding="us-ascii")
    return _CHARACTER.sub(_spelled_out, file.getvalue().decode())


def node_link(answer: Answer) -> str:
    """Node-link JSON, for `networkx.node_link_graph(data, edges="edges")`. `answer`: in words and rows."""
    import networkx

    data = networkx.node_link_data(answer.graph, edges="edges")
    found = listing(answer, exact=True)
    rows = [dict(zip(found.heads, row, strict=True)) for row in found.rows]
    return json.dumps({**data, "answer": {"text": sentences(answer), "rows": rows}}, indent=1) + "\n"


def _spelled_out(found: re.Match[str]) -> str:
    character = chr(int(found[1])) if found[1] else found[0]
    return found[0] if _IN_XML.match(character) else character.encode("unicode_escape").decode()
