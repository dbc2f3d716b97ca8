"""A report as a Chakra execution trace: the predicted run of one rank, as ASTRA-sim and Chakra's tools read it.

A trace is a stream of messages, each after its length: `schema/protobuf/et_def.proto` (version 1.0.0) of
https://github.com/mlcommons/chakra. Attributes have the names, types and meanings that Chakra's feeder and ASTRA-sim's
workload layer expect.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from graphflops.base.protobuf import field, packed, varint
from graphflops.cost import Cost
from graphflops.derived.timeline import Memory, Span, timeline
from graphflops.dims import total
from graphflops.errors import OptionError
from graphflops.graph import Mesh, Ref
from graphflops.ops import operator
from graphflops.render.text import operator_name, safe
from graphflops.report import Report, Row
from graphflops.tensor import flat
from graphflops.version import __version__
from graphflops.view import View

_SCHEMA = "1.0.0"
METADATA, LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = range(1, 8)  # NodeType
# Names of nodes begin with their type, by which Chakra's timeline visualizer distinguishes them.
_TYPES = {LOAD: "MEM_LOAD", STORE: "MEM_STORE", COMPUTE: "COMP"}
_TYPES |= {SEND: "COMM_SEND", RECEIVE: "COMM_RECV", COLLECTIVE: "COMM_COLL"}
# CollectiveCommType by canonical operator.
KINDS = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}
_FIELDS = {"double": 3, "int32": 7, "int64": 9, "uint64": 13, "bool": 27, "string": 29}  # of AttributeProto
ALL = "0"  # torch's group of all ranks, and ASTRA-sim's, which needs no list of them
LARGEST, _LARGEST_INT32 = 2**63 - 1, 2**31 - 1
MICROSECONDS = 1e6

# The types of attributes; all others are strings.
_TYPED = {
    **dict.fromkeys(("predicted_seconds", "seconds_alone"), "double"),
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32"),
    **dict.fromkeys(("rank", "world_size", "stage", "microbatch", "stream", "unknown_calls"), "int64"),
    **dict.fromkeys(("num_ops", "comm_type", "comm_size"), "int64"),
    **dict.fromkeys(("is_cpu_op", "is_fused", "is_unknown"), "bool"),
    "tensor_size": "uint64",
}
Facts = Mapping[str, object]  # attributes by name; None: not known


def stream(messages: Iterable[bytes]) -> bytes:
    """The messages as a file."""
    return b"".join([bytes(varint(len(message))) + message for message in messages])


def metadata(facts: Facts, mesh: Mesh | None) -> bytes:
    """The first message: the producer and the rank of the trace."""
    place = {} if mesh is None else {"rank": mesh.rank, "world_size": prod(mesh.axes.values())}
    about = {"producer": f"graphflops {__version__}, predicted", **facts, **place}
    return field(1, _SCHEMA) + attributes(2, about)


def process_groups(number: int, mesh: Mesh) -> bytes:
    """The groups and their ranks as PyTorch's execution traces have them. ASTRA-sim reads them before other nodes."""
    groups = [{"pg_name": name, "pg_desc": one.axis, "ranks": one.ranks} for name, one in mesh.groups.items()]
    inputs = field(8, field(1, f"['{json.dumps(groups)}']"))
    return node(number, "## process_group:init ##", METADATA, inputs + attributes(10, {"is_cpu_op": True}))


def node(number: int, name: str, kind: int, rest: bytes) -> bytes:
    """A node. rest: its further fields."""
    name = f"{_TYPES[kind]}_NODE_{name}" if kind in _TYPES else name
    return field(1, number) + field(2, name) + field(3, kind) + rest


def attributes(number: int, facts: Facts) -> bytes:
    """The attributes with known values; also `is_unknown` if another's value is unknown or too large to write."""
    known: list[tuple[str, str, Any]] = []
    for name, value in facts.items():
        kind = _TYPED.get(name, "string")
        most = _LARGEST_INT32 if kind == "int32" else LARGEST
        is_written = isinstance(value, str if kind == "string" else float)
        if 0 <= value <= most if isinstance(value, int) else is_written:
            known.append((name, kind, value))
    if len(known) < len(facts):
        known.append(("is_unknown", "bool", True))
    parts = (field(1, name) + field(_FIELDS[kind], value) for name, kind, value in known)
    return b"".join([field(number, part) for part in parts])


# The collective that the backward runs for the gradients.
_TAKEN_BACK = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
_TO_ONE = ("send", "receive", "send_and_receive")
_MOST = 2_000_000  # nodes: some 500 MB

_Node = tuple[int, Facts]


def chakra(report: Report) -> bytes:
    """The trace: a node for each call in the order of launching, and one for each collective or message beside them.

    Data dependencies are those of values and of memory that is written in place; control dependencies are the order of each
    stream and its waits. Starts and durations are microseconds of one clock, rounded; `predicted_seconds` is exact. Unknown
    attributes (the cost of a call, an amount that depends on an open size) are left out, and the node has `is_unknown`; a
    call that runs in another call's kernel has its work but no time, and `is_fused`.
    Raises OptionError for a report without times, and for a saved one with collectives, whose operands it does not hold.
    """
    if not report.device:
        raise OptionError("--format chakra: the report has no times: name a device with --device")
    if report.program is None and any(row.time and row.time.collective for row in report.rows):
        raise OptionError("--format chakra: a saved report does not say what collectives send: give a model")
    micro_steps = 1 if report.training is None else report.training.accumulate
    if len(report.rows) * micro_steps > _MOST:
        raise OptionError(f"--format chakra: more than {_MOST:,} nodes: take a smaller --accumulate")
    spans = timeline(report, micro_steps)
    if max((span.end for span in spans), default=0.0) * MICROSECONDS > LARGEST:
        raise OptionError("--format chakra: there are too many microseconds to count: take smaller sizes")
    return stream(_Trace(report).messages(spans))


class _Trace:
    def __init__(self, report: Report) -> None:
        self.report, self.mesh = report, report.mesh
        calls = [] if report.program is None else View(report.program, report.rows).calls
        self.arguments = {one.name: one.node.arguments() for one in calls if one.operator.is_exchange}
        self.memory = Memory(report)
        step = None if report.program is None else report.program.step
        self.away = {} if step is None else step.hosted()  # values in the host's memory
        self.ids: list[range] = []  # nodes of each span
        self.streams: dict[str | None, int] = {None: 0}  # the numbers of streams
        self.last: dict[str | None, range] = {None: range(0)}  # of calls, and of each group's collectives
        self.count = 0

    def messages(self, spans: Iterable[Span]) -> Iterator[bytes]:
        report = self.report
        facts = {"device": safe(report.device), "execution": report.execution}
        yield metadata({**facts, "unknown_calls": report.coverage.unknown}, self.mesh)
        groups = {str(given.get("group_name")) for given in self.arguments.values()}
        if self.mesh is not None and groups - {ALL}:
            yield process_groups(0, self.mesh)
            self.count = 1
        for span in spans:
            first = self.count
            yield from self.span(span)
            self.ids.append(range(first, self.count))
            self.last[span.stream] = self.ids[-1] or self.last.get(span.stream, range(0))

    def span(self, span: Span) -> Iterator[bytes]:
        """The nodes of a span: one, unless a call exchanges several messages."""
        row = self.report.rows[span.row] if span.row >= 0 else None
        depends = set() if row is None else self.memory.touched(span, row, len(self.ids))
        data = {node for place in depends for node in self.ids[place]}
        control = {node for place in span.waits for node in self.ids[place]} | {*self.last[None]}
        control |= {*self.last.get(span.stream, ())}
        begin, end = (round(moment * MICROSECONDS) for moment in (span.start, span.end))
        body = packed(4, sorted(control - data)) + packed(5, sorted(data)) + field(6, begin)
        facts: dict[str, object] = {"phase": span.phase}
        if row is None or span.time is not None:
            body += field(7, end - begin)
            facts["predicted_seconds"] = span.end - span.start
        elif row.state == "counted" and self.report.execution == "compiled":
            facts["is_fused"] = True
        else:
            facts["predicted_seconds"] = None
        name = "optimizer" if span.phase == "optimizer" else "outside of calls"
        if row is not None:
            name = operator_name(row.op)
            texts = {"module": row.module, "node": row.node, "source": row.source}
            facts |= {key: safe(text) for key, text in texts.items() if text}
        nodes = [self.call(span, row)] if row is None or span.stream is None else self.exchanges(span, row)
        for kind, own in nodes:
            yield node(self.count, name, kind, body + attributes(10, {**facts, **own}))
            self.count += 1

    def call(self, span: Span, row: Row | None) -> _Node:
        """The node of a call; for a collective, of its launch or of a copy beside it, without the collective's work."""
        time, optimizer = span.time, self.report.optimizer
        if row is None:
            if span.phase == "optimizer" and optimizer is not None:
                return COMPUTE, {"is_cpu_op": False, **self.work(optimizer.cost)}
            return COMPUTE, {"is_cpu_op": self.report.execution != "graph"}  # in a graph it is the loss
        if time is not None and time.collective:
            return COMPUTE, {"is_cpu_op": "," not in time.kernel}
        facts = {"is_cpu_op": time is not None and not time.kernel, "stream": 0}
        made = tuple([Ref(name) for name, _ in row.outputs])
        read, stored = ([name in self.away for name, _ in side] for side in (row.inputs, row.outputs))
        if any(stored) and not all(read):
            return STORE, {**facts, "tensor_size": self.bytes(made, row)}
        if any(read) and stored and not any(stored):
            return LOAD, {**facts, "tensor_size": self.bytes(made, row)}
        return COMPUTE, {**facts, **self.work(_cost(span, row))}

    def exchanges(self, span: Span, row: Row) -> Iterator[_Node]:
        """The collective of a call, or its messages to and from single devices, whose ranks are those of the mesh."""
        name, given = operator(row.op).name, self.arguments.get(row.node, {})
        group = given.get("group_name")
        common = {
            "is_cpu_op": False,
            "stream": self.streams.setdefault(span.stream, len(self.streams)),
            **self.work(_cost(span, row)),
        }
        common["pg_name"] = None if group is None else safe(str(group))
        if name not in _TO_ONE:
            read = given.get("x")
            if span.is_gradient:
                name, read = _TAKEN_BACK.get(name, name), tuple([Ref(value) for value, _ in row.outputs])
            yield COLLECTIVE, {**common, "comm_type": KINDS.get(name), "comm_size": self.bytes(read, row)}
            return
        listed = [name, given.get("dst", given.get("src")), given.get("tag"), given.get("x")]
        if name == "send_and_receive":
            listed = [given.get(key) for key in ("operators", "peers", "tags", "x")]
        groups = {} if self.mesh is None else self.mesh.groups
        members = groups[str(group)].ranks if str(group) in groups else ()
        for what, peer, tag, x in zip(*(flat((each,)) for each in listed), strict=False):
            is_sent = what in ("send", "isend")
            other = members[peer] if isinstance(peer, int) and 0 <= peer < len(members) else None
            ranks = [None if self.mesh is None else self.mesh.rank, other]
            ends = zip(("comm_src", "comm_dst"), ranks if is_sent else ranks[::-1], strict=True)
            facts = {**dict(ends), "comm_tag": tag, "comm_size": self.bytes(x, row)}
            yield SEND if is_sent else RECEIVE, {**common, **facts}

    def work(self, cost: Cost | None) -> dict[str, object]:
        """FLOPs of matrix products and others, and bytes read and written. cost: None where it is not known."""
        flops = None if cost is None else self.report.value(cost.flops)
        moved = None if cost is None else self.report.value(cost.moved_bytes)
        return {"num_ops": flops, "tensor_size": moved}

    def bytes(self, values: object, row: Row) -> int | None:
        """Bytes of values that a call reads or makes, with all their elements; None where they are not known."""
        types = dict((*row.outputs, *row.inputs))
        names = [one.name for one in flat((values,)) if isinstance(one, Ref)]
        if not names or not types.keys() >= {*names}:
            return None
        return self.report.value(total(types[name].like().nbytes for name in names))


def _cost(span: Span, row: Row) -> Cost | None:
    return None if row.state == "unknown" else row.backward if span.is_gradient else row.cost
