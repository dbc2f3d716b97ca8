"""Reads `.pt2` files of `torch.export.save`: only the JSON that describes the program, never weights.

torch is not imported, nothing is unpickled and no weight is opened. There are two layouts. Until torch 2.7, the program is
`serialized_exported_program.json` at the top of the archive. Since 2.8 it is `NAME/models/MODEL.json`, and one archive may
hold several programs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec.structs import replace

from graphflops.errors import FileError, shown
from graphflops.exporters import in_one_line
from graphflops.exporters import pt2_schema as schema
from graphflops.exporters.archive import RECORD, Archive
from graphflops.exporters.pt2_graph import graph_of
from graphflops.exporters.pt2_schema import decode
from graphflops.exporters.pt2_tables import OLD_CHECKPOINTS, OLD_PROGRAM, Place, Tables
from graphflops.graph import Graph, Origin


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
            raise FileError(f"holds several programs: choose one with --model ({names})")
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
        decoded = decode(data, schema.ExportedProgram, where)
    except FileError:
        # If the major version of the schema is unknown, the message should say that.
        _check_major(decode(data, schema.Versioned, where).schema_version.major, where)
        raise
    _check_major(decoded.schema_version.major, where)
    version = decoded.torch_version.partition("+")[0]
    producer = f"torch {version}" if version else "torch <=2.4"
    origin = Origin(str(archive.path), "pt2", producer, hashlib.sha256(data).hexdigest())
    tables = Tables(archive, name, decoded.graph_module.signature)
    graph = graph_of(decoded, tables, origin)
    model = Place.of(name).model or "model"
    if any(RECORD in member for member in archive.names):
        from graphflops.exporters import eager_record  # few files need it

        graph = eager_record.with_record(graph, eager_record.record_in(archive, model))
    return replace(graph, notes=(*graph.notes, *tables.notes(graph)))


def _check_major(major: int, where: str) -> None:
    if not schema.OLDEST_MAJOR <= major <= schema.NEWEST_MAJOR:
        is_new = major > schema.NEWEST_MAJOR
        advice = "update graphflops" if is_new else "export the model again with torch 2.4 or later"
        reads = f"this graphflops reads {schema.OLDEST_MAJOR} to {schema.NEWEST_MAJOR}"
        raise FileError(f"{where} follows schema major {major}; {reads}: {advice}")
