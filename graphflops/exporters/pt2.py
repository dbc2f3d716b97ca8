"""Reads `.pt2` files of `torch.export.save`: only the JSON that describes the program and an eager run, never weights.

torch is not imported, nothing is unpickled. Until torch 2.7, the program is `serialized_exported_program.json` at the top of
the archive; since 2.8 it is `NAME/models/MODEL.json`, and one archive may hold several programs.
"""

import hashlib
from pathlib import Path

import msgspec

from graphflops.base.record import replace
from graphflops.errors import FileError, shown
from graphflops.exporters import in_one_line, pt2_schema as schema
from graphflops.exporters.archive import Archive
from graphflops.exporters.pt2_graph import graph_of
from graphflops.exporters.pt2_tables import OLD_CHECKPOINTS, OLD_PROGRAM, Place, Tables
from graphflops.graph import EagerRun, Graph, Note, Origin
from graphflops.tensor import TensorType


def read(path: Path | str, model: str | None = None) -> Graph:
    """The program in a `.pt2`. model: which one, if it holds several. Raises FileError, in one line, for any other file."""
    with Archive(path) as archive, in_one_line(str(archive)):
        found = programs(archive)
        if not found:
            raise FileError(_other_archive(archive.names))
        names = ", ".join(shown(name) for name in list(found)[:20]) + (", ..." if len(found) > 20 else "")
        if model is not None and model not in found:
            raise FileError(f"holds no program {shown(model)}; it holds {names}")
        if model is None and len(found) > 1:
            raise FileError(f"holds {names}: choose one, as in --model {shown(next(iter(found)))}")
        return _read_program(archive, next(iter(found.values())) if model is None else found[model])


def programs(archive: Archive) -> dict[str, str]:
    """By name of a program: its member. Raises FileError if torch might read another program, or other weights, than we."""
    found, others = {}, []
    for member in sorted(archive.names):
        name = Place.of(member).model
        if not name:
            continue
        if member.endswith(".json") and name not in found:
            found[name] = member
        else:
            others.append(member)  # torch takes it for a program, whatever its suffix is
    if OLD_PROGRAM in archive.names:
        others, found = [*others, *found.values()], {"model": OLD_PROGRAM}
    if found and others:
        raise FileError(_two_programs(*found.values(), *others))
    for member in found.values():  # weights and constants must not be there in two layouts either
        place = Place.of(member)
        for kind, old in OLD_CHECKPOINTS.items():
            tables = place.table(kind), place.checkpoint(kind)
            for both in (tables, (old, f"{old.removesuffix('.pt')}.json")):
                if archive.names.issuperset(both):
                    raise FileError(_two_programs(*both))
    return found


def _two_programs(one: str, other: str, *_: str) -> str:
    return f"holds {shown(one)} and {shown(other)}, and torch may read either: export the model again"


def _other_archive(names: frozenset[str]) -> str:
    inner = {name.partition("/")[2] for name in names} | names
    if any(name.startswith("data/aotinductor/") or "/aotinductor/" in name for name in inner):
        what = "an AOTInductor package, compiled code without a program"
        return f"is {what}: give the .pt2 it was compiled from"
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        return "is a TorchScript file: export the model with torch.export and save that"
    if "data.pkl" in inner:
        return "is a checkpoint of torch.save, weights without a program: export the model with torch.export"
    return "is a zip archive without an exported program: give the file that torch.export.save wrote"


def _read_program(archive: Archive, name: str) -> Graph:
    data = archive.read(name)
    where = shown(name)
    try:
        decoded = schema.decode(data, schema.ExportedProgram, where)
    except FileError:
        # If the major version of the schema is unknown, the message should say that.
        _check_major(schema.decode(data, schema.Versioned, where).schema_version.major, where)
        raise
    _check_major(decoded.schema_version.major, where)
    version = decoded.torch_version.partition("+")[0]
    producer = f"torch {version}" if version else "torch <=2.4"
    origin = Origin(str(archive.path), "pt2", producer, hashlib.sha256(data).hexdigest())
    tables = Tables(archive, name, decoded.graph_module.signature)
    record = _record_in(archive, Place.of(name).model or "model")
    graph = with_record(graph_of(decoded, tables, origin), record)
    return replace(graph, notes=(*graph.notes, *tables.notes(graph)))


def _check_major(major: int, where: str) -> None:
    if not schema.OLDEST_MAJOR <= major <= schema.NEWEST_MAJOR:
        is_new = major > schema.NEWEST_MAJOR
        advice = "update graphflops" if is_new else "export the model again with torch 2.4 or later"
        reads = f"this graphflops reads {schema.OLDEST_MAJOR} to {schema.NEWEST_MAJOR}"
        raise FileError(f"{where} follows schema major {major}; {reads}: {advice}")


# The record of an eager run (docs/capture.md): an extra file of the archive, which `torch.export.load` ignores.

RECORD_FORMAT = 1
# Kinds of calls that an export never adds. So eager execution runs them too, before the calls that read their results.
COMPUTING = frozenset({"product", "convolution", "attention", "recurrent", "normalisation"})
_LARGEST = 2**26  # bytes of a record; a decoder of 80 layers has 300 thousand
_FOLDERS = ("extra/", "extra_files/")  # where torch puts extra files: since 2.8, and before


def record_name(program: str) -> str:
    """The extra file of a program of an archive."""
    return f"graphflops_eager_{program}.json"


def _record_in(archive: Archive, program: str) -> EagerRun | str | None:
    """The record of a program in an archive; text that says what is wrong with it; or None if there is none."""
    name = record_name(program)
    ends = [member for member in archive.names if member.endswith(name)]
    places = {folder + name for folder in _FOLDERS}
    found = [member for member in ends if {member, member.partition("/")[2]} & places]
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
    if record.format != RECORD_FORMAT:
        return f"it has format {record.format}, this graphflops reads {RECORD_FORMAT}"
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
