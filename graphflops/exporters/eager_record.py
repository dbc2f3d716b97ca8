"""The record of an eager run in a `.pt2`: an extra file, which `torch.export.load` ignores, as JSON (docs/capture.md)."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from graphflops.errors import FileError
from graphflops.exporters.archive import RECORD, Archive
from graphflops.graph import EagerRun, Graph, Note
from graphflops.tensor import TensorType

FORMAT = 1
# Kinds of calls that an export never adds. So eager execution runs them too, before the calls that read their results.
COMPUTING = frozenset({"product", "convolution", "attention", "recurrent", "normalisation"})
_LARGEST = 2**26  # bytes of a record; a decoder of 80 layers has 300 thousand
_FOLDERS = ("extra/", "extra_files/")  # where torch puts extra files: since 2.8, and before


def file_name(program: str) -> str:
    """The extra file of a program of an archive."""
    return f"{RECORD}{program}.json"


def record_in(archive: Archive, program: str) -> EagerRun | str | None:
    """The record of a program in an archive; text that says what is wrong with it; or None if there is none."""
    names = {folder + file_name(program) for folder in _FOLDERS}
    found = [member for member in archive.names if {member, member.partition("/")[2]} & names]
    if len(found) != 1:
        return "there are two" if found else None
    try:
        return msgspec.json.decode(archive.read(found[0], _LARGEST), type=EagerRun)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "it is not of the documented form"
    except FileError as error:
        return str(error)


def with_record(graph: Graph, record: EagerRun | str | None) -> Graph:
    """The graph with its record; a record that contradicts the program is ignored, with a note."""
    if record is None:
        return graph
    problem = record if isinstance(record, str) else _problem(graph, record)
    if problem:
        text = f"the record of an eager run is ignored, and lines of code are read instead: {problem}"
        return replace(graph, notes=(*graph.notes, Note("GF128", "", text)))
    return replace(graph, eager=record)


def _problem(graph: Graph, record: EagerRun) -> str:
    if record.format != FORMAT:
        return f"it has format {record.format}, this graphflops reads {FORMAT}"
    places = {name: place for place, name in enumerate(record.values)}
    results = [name for node in graph.nodes for name in node.outputs]
    made = [name for name in results if isinstance(graph.types.get(name or ""), TensorType)]
    if len(places) < len(record.values) or [name for name in made if name in places] != [*record.values]:
        return "its values are not those that the program's calls make, in their order"
    if len(record.until) != len(record.values):
        return "it has not one lifetime for each value"
    last = len(record.values) - 1
    if any(until != -1 and not place <= until <= last for place, until in enumerate(record.until)):
        return "a value is freed before it is made"
    computed = {name for node in graph.nodes if node.operator.kind in COMPUTING for name in node.outputs}
    for node in graph.nodes:
        own = next((places[name] for name in node.outputs if name in places), None)
        if own is None or record.until[own] < 0:
            continue
        for name in node.reads():
            until = record.until[places.get(name, own)]
            if -1 < until < own:
                return f"{name} is freed before {node.name} reads it"
            if until < 0 and name in computed:
                return f"{name} is not made, and {node.name} reads it"
    kinds = {node.outputs[0]: node.operator.kind for node in graph.nodes if node.outputs}
    if any(kinds.get(name) != "attention" for name in record.attentions):
        return "it names an attention that is none"
    return ""
