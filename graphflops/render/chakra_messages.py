"""Chakra's messages, of which an execution trace is a stream, each behind its length: https://github.com/mlcommons/chakra.

`schema/protobuf/et_def.proto` (version 1.0.0). Attributes have the names, types and meanings by which Chakra's feeder and
ASTRA-sim's workload layer read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import prod

from graphflops.base.protobuf import field, varint
from graphflops.graph import Mesh
from graphflops.version import __version__

_SCHEMA = "1.0.0"
METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)  # NodeType
# Names of nodes begin with their type: by that Chakra's timeline visualizer tells them apart.
_TYPES = {LOAD: "MEM_LOAD", STORE: "MEM_STORE", COMPUTE: "COMP"}
_TYPES |= {SEND: "COMM_SEND", RECEIVE: "COMM_RECV", COLLECTIVE: "COMM_COLL"}
# CollectiveCommType by canonical operator.
KINDS = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}
_FIELDS = {"double": 3, "int32": 7, "int64": 9, "uint64": 13, "bool": 27, "string": 29}  # of AttributeProto
ALL = "0"  # torch's group of all ranks, and ASTRA-sim's, which needs no list of them
LARGEST, _LARGEST_INT32 = 2**63 - 1, 2**31 - 1
MICROSECONDS = 1e6

Attribute = tuple[str, str, "int | float | str | None"]  # name, type and value; None: not known


def stream(messages: Iterable[bytes]) -> bytes:
    """The messages as a file."""
    return b"".join([bytes(varint(len(message))) + message for message in messages])


def metadata(facts: Iterable[Attribute], mesh: Mesh | None) -> bytes:
    """The first message: what wrote the trace, and of which rank."""
    listed: list[Attribute] = [("producer", "string", f"graphflops {__version__}, predicted"), *facts]
    if mesh is not None:
        listed += [("rank", "int64", mesh.rank), ("world_size", "int64", prod(mesh.axes.values()))]
    return field(1, _SCHEMA) + attributes(2, listed)


def process_groups(number: int, mesh: Mesh) -> bytes:
    """The groups and their ranks as PyTorch's execution traces have them. ASTRA-sim reads them before other nodes."""
    groups = [
        {"pg_name": name, "pg_desc": group.axis, "ranks": group.ranks} for name, group in mesh.groups.items()
    ]
    inputs = field(8, field(1, f"['{json.dumps(groups)}']"))
    return node(number, "## process_group:init ##", METADATA, inputs + attributes(10, [on_cpu(True)]))


def node(number: int, name: str, kind: int, rest: bytes) -> bytes:
    """A node. rest: its further fields."""
    name = f"{_TYPES[kind]}_NODE_{name}" if kind in _TYPES else name
    return field(1, number) + field(2, name) + field(3, kind) + rest


def on_cpu(is_on_cpu: bool) -> Attribute:
    """Whether a node runs no kernel."""
    return "is_cpu_op", "bool", is_on_cpu


def attributes(number: int, facts: Iterable[Attribute]) -> bytes:
    """The attributes whose value is known; `is_unknown` where that of another is not, or too large to write."""
    listed = [*facts]
    known = [(name, kind, value) for name, kind, value in listed if value is not None and _fits(kind, value)]
    if len(known) < len(listed):
        known.append(("is_unknown", "bool", True))
    return b"".join(
        field(number, field(1, name) + field(_FIELDS[kind], value)) for name, kind, value in known
    )


def _fits(kind: str, value: object) -> bool:
    if not isinstance(value, int):
        return isinstance(value, str if kind == "string" else float)
    return 0 <= value <= (_LARGEST_INT32 if kind == "int32" else LARGEST)
