"""Chakra's messages as google.protobuf reads them, from the fields of its schema.

Source: https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto at 21585d8 (version 1.0.0), MIT licence,
Copyright (c) MLCommons. Names, numbers and types of all fields, without the message `Tensor`, which no other one holds.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = (
    "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes"
)
SCALARS = tuple(_SCALARS.split(" "))
FIELDS = {
    "AttributeProto": "1 string name, 2 string doc_string, "
    + ", ".join(
        f"{3 + 2 * at} {kind} {kind}_val, {4 + 2 * at} {kind.capitalize()}List {kind}_list"
        for at, kind in enumerate(SCALARS)
    ),
    **{f"{kind.capitalize()}List": f"1 repeated {kind} values" for kind in SCALARS},
    "GlobalMetadata": "1 string version, 2 repeated AttributeProto attr",
    "IOInfo": "1 string values, 2 string shapes, 3 string types",
    "Node": "1 uint64 id, 2 string name, 3 NodeType type, 4 repeated uint64 ctrl_deps, 5 repeated uint64 data_deps, "
    "6 uint64 start_time_micros, 7 uint64 duration_micros, 8 IOInfo inputs, 9 IOInfo outputs, "
    "10 repeated AttributeProto attr",
}
NODE_TYPES = (
    *("INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE"),
    *("COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE", "COMM_COLL_NODE"),
)
COLLECTIVES = (
    *("ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST"),
    *("ALL_TO_ALL", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER"),
)


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = file.enum_type.add(name="NodeType")
    for number, name in enumerate(NODE_TYPES):
        kinds.value.add(name=name, number=number)
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for line in fields.split(", "):
            number, *repeated, kind, field = line.split()
            added = message.field.add(name=field, number=int(number))
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            if kind in SCALARS:
                added.type = getattr(added, f"TYPE_{kind.upper()}")
            else:
                added.type = added.TYPE_ENUM if kind == "NodeType" else added.TYPE_MESSAGE
                added.type_name = f".ChakraProtoMsg.{kind}"
            if field.endswith(("_val", "_list")):
                added.oneof_index = 0
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())
GlobalMetadata, Node = (
    message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
    for name in ("GlobalMetadata", "Node")
)


def read(data: bytes) -> tuple[Any, list[Any]]:
    """The global metadata and the nodes of a trace: messages, each behind its length, nothing left over."""
    messages, at = [], 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            size, shift, at = size | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                break
        message = Node() if messages else GlobalMetadata()
        assert message.ParseFromString(data[at : at + size]) == size
        messages.append(message)
        at += size
    assert at == len(data)
    return messages[0], messages[1:]


def attributes(message: Any) -> dict[str, Any]:
    """The values by name."""
    found = {one.name: getattr(one, one.WhichOneof("value")) for one in message.attr}
    assert len(found) == len(message.attr)
    return found


def replayed(nodes: list[Any]) -> dict[int, int]:
    """When each node ends, in microseconds, if it starts once all it depends on have ended: nodes before it."""
    ends: dict[int, int] = {}
    for node in nodes:
        before = {*node.ctrl_deps, *node.data_deps}
        assert before <= ends.keys()
        assert not {*node.ctrl_deps} & {*node.data_deps}
        start = max((ends[each] for each in before), default=0)
        assert node.type == NODE_TYPES.index("METADATA_NODE") or start == node.start_time_micros
        ends[node.id] = start + node.duration_micros
    assert [*ends] == [*range(len(nodes))]
    return ends
