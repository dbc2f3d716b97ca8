"""The model under audit: the file, the program in it, and the program's cost."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from graphflops.dims import Dim, Expr, evaluate
from graphflops.exporters.onnx_scope import domain_of, graphs_of
from graphflops.graph import Graph
from graphflops.passes.bind import OTHER
from graphflops.report import Report
from graphflops.report.findings import Severity
from graphflops.tensor import TensorType
from graphflops.view import Call, View

NOTABLE_SHARE = 0.05  # of all bytes or FLOPs: a smaller cost is a note, not a warning
NEGLIGIBLE_SHARE = 0.0001  # a smaller cost is not reported


class Freed(NamedTuple):
    """What a fix saves: FLOPs and bytes of one run, and bytes of stored tensors."""

    flops: Dim
    bytes: Dim
    stored: int


@dataclass(eq=False)
class Model:
    """One ONNX file."""

    path: Path
    proto: Any  # its ModelProto, without weights
    graph: Graph | None = None  # None, as the report, if the file is no valid program; `problem` says why
    report: Report | None = None
    problem: str = ""
    beside: Path | None = None  # the file whose folder has its data; None for itself

    # The file

    @cached_property
    def folder(self) -> str:
        """Where the data lie that the file keeps outside of itself."""
        return os.path.realpath((self.beside or self.path).parent)

    @cached_property
    def graphs(self) -> list[Any]:
        """Every GraphProto: the program's own first, then those in attributes of its calls and of its functions' calls."""
        found, functions = [self.proto.graph], self.proto.functions
        nodes = [*self.proto.graph.node, *(node for function in functions for node in function.node)]
        while nodes:
            inner = nested(nodes.pop())
            found += inner
            nodes += [node for graph in inner for node in graph.node]
        return found

    @cached_property
    def nodes(self) -> list[Any]:
        """Every NodeProto of the file, those of functions and nested graphs too."""
        return [
            *(node for graph in self.graphs for node in graph.node),
            *(node for function in self.proto.functions for node in function.node),
        ]

    @cached_property
    def tensors(self) -> list[Any]:
        """Every TensorProto with data of its own: initializers and constants in attributes."""
        found = [tensor for graph in self.graphs for tensor in graph.initializer]
        found += [tensor.values for graph in self.graphs for tensor in graph.sparse_initializer]
        return found + [tensor for node in self.nodes for tensor in held(node)]

    @cached_property
    def opsets(self) -> dict[str, int]:
        """Version in force by domain, "" for ai.onnx."""
        return {domain_of(entry.domain): entry.version for entry in self.proto.opset_import}

    # The program

    @cached_property
    def view(self) -> View:
        """The priced program: makers, users and types of its values."""
        assert self.graph is not None
        assert self.report is not None
        return View(self.graph, self.report.rows)

    def typed(self, name: str) -> TensorType | None:
        """The type of a value of the program, if it is known."""
        return self.view.types.get(name)

    # Costs

    def at(self, quantity: Dim | None) -> int:
        """A quantity at the sizes of the report, for checks that compare costs; 0 for None.

        Sizes without a value, which only data can tell or which --open leaves open, are taken at OTHER within their range.
        """
        if quantity is None or isinstance(quantity, int):
            return quantity or 0
        return evaluate(quantity, {name: self._size(name) for name in quantity.symbols}) or 0

    def _size(self, name: str) -> int:
        assert self.report is not None
        info = self.report.symbols.get(name)
        if info is None:
            return OTHER
        if info.value is not None:
            return info.value
        return min(max(OTHER, info.minimum or 0), info.maximum or OTHER)

    def freed(self, call: Call, kept: Collection[str] = (), gone: set[int] | None = None) -> Freed:
        """What leaving a call out saves: it, and the calls and stored tensors that only it needs.

        kept: values that stay. gone: places of calls that are left out before, to which these are added.
        """
        gone = set() if gone is None else gone
        gone.add(call.place)
        left, waiting, stored = [call], [call], dict[str, int]()
        while waiting:
            for name in waiting.pop().uses:
                maker = self.view.makers.get(name)
                made = [name] if maker is None else [result for result in maker.node.outputs if result]
                users = [user for each in made for user in self.view.users.get(each, [])]
                is_needed = any(user.place not in gone for user in users)
                if name in kept or is_needed or not self.view.returned.isdisjoint(made):
                    continue
                if maker is None and name in self.view.stored and name in self.view.types:
                    stored[name] = self.at(self.view.types[name].nbytes)
                elif maker is not None and maker.place not in gone:
                    gone.add(maker.place)
                    left.append(maker)
                    waiting.append(maker)
        flops, moved = (sum(parts, start=0) for parts in ([c.flops for c in left], [c.bytes for c in left]))
        return Freed(flops, moved, sum(stored.values()))

    def is_open(self, size: Expr) -> bool:
        """True if the user gave no sizes that determine this one."""
        assert self.report is not None
        given = {name: info.value for name, info in self.report.symbols.items() if info.given_by == "user"}
        return evaluate(size, {name: value for name, value in given.items() if value is not None}) is None

    def graded(self, flops: Dim | None, bytes: Dim | None) -> Severity:
        """A warning if the cost is a notable share of the whole, else a note."""
        return "warning" if self.share(flops, bytes) > NOTABLE_SHARE else "note"

    def share(self, flops: Dim | None, bytes: Dim | None) -> float:
        """The share in all FLOPs or in all bytes, whichever is larger."""
        parts = zip((self.at(flops), self.at(bytes)), self._whole, strict=True)
        return max(part / whole if whole else 0.0 for part, whole in parts)

    @cached_property
    def _whole(self) -> tuple[int, int]:
        assert self.report is not None
        cost = self.report.total()
        flops = self.at(cost.matrix_flops + cost.vector_flops)
        return flops, self.at(cost.read_bytes + cost.written_bytes)


def nested(node: Any) -> list[Any]:
    """The GraphProtos among the attributes of a NodeProto."""
    return [graph for attribute in node.attribute for graph in graphs_of(attribute)]


def held(node: Any) -> list[Any]:
    """The TensorProtos among the attributes of a NodeProto."""
    return [
        tensor
        for attribute in node.attribute
        for tensor in (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))
    ]
