"""What checks read (the model under audit) and what they return (observations).

A check is a function under a stable code; its docstring is the explanation that users read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from graphflops.base.docstrings import docstring
from graphflops.base.record import Record
from graphflops.dims import Dim, Expr, evaluate, total
from graphflops.exporters.onnx_scope import domain_of, graphs_of
from graphflops.graph import Graph
from graphflops.passes.bind import OTHER
from graphflops.report import Report
from graphflops.report.findings import RuleInfo, Severity
from graphflops.tensor import TensorType
from graphflops.view import Call, View

NOTABLE_SHARE = 0.05  # of all bytes or FLOPs: a smaller cost is a note, not a warning
NEGLIGIBLE_SHARE = 0.0001  # a smaller cost is not reported


class Freed(NamedTuple):
    """What a fix saves: FLOPs and bytes of one run, and bytes of stored tensors."""

    flops: Dim
    bytes: Dim
    stored: int


class File(Struct, eq=False, dict=True):
    """One ONNX file."""

    path: Path
    proto: Any  # its ModelProto, without weights
    beside: Path | None = None  # the file whose folder has its data; None for itself

    @cached_property
    def folder(self) -> str:
        """The folder of the file's external data."""
        return os.path.realpath((self.beside or self.path).parent)

    @cached_property
    def graphs(self) -> list[Any]:
        """Every GraphProto: the program's own first, then those in attributes of its calls and of its functions' calls."""
        found = [self.proto.graph]
        nodes = [node for holder in (*found, *self.proto.functions) for node in holder.node]
        while nodes:
            inner = nested(nodes.pop())
            found += inner
            nodes += [node for graph in inner for node in graph.node]
        return found

    @cached_property
    def nodes(self) -> list[Any]:
        """Every NodeProto of the file, those of functions and nested graphs too."""
        return [node for holder in (*self.graphs, *self.proto.functions) for node in holder.node]

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


class Model(File, eq=False, dict=True, kw_only=True):
    """The program of an ONNX file."""

    graph: Graph  # empty if the file is no valid program
    report: Report
    problem: str  # why the file is no valid program; "" for a valid one

    @cached_property
    def view(self) -> View:
        return View(self.graph, self.report.rows)

    def calls(self, name: str) -> Iterator[Call]:
        """The calls of an operator, by its canonical name."""
        return (call for call in self.view.calls if call.operator.name == name)

    def pairs(self, name: str, then: str) -> Iterator[tuple[Call, Call]]:
        """Calls of an operator with the calls of another that are all that uses their results."""
        for second in self.calls(then):
            first = self.view.makers.get(second.value("x"))
            is_alone = first is not None and self.view.only_user(first.result) is second
            if first is not None and is_alone and first.operator.name == name:
                yield first, second

    def typed(self, name: str) -> TensorType | None:
        return self.view.types.get(name)

    def said(self, code: str, calls: Mapping[str, Call] | None = None) -> Iterator[Observation]:
        """The diagnostics of the reader and the analysis with a code. calls: by name, the calls that they may be about."""
        found = [one for one in self.report.diagnostics if one.code == code]
        return (Observation(one.message, (calls or {}).get(one.node)) for one in found)

    def at(self, quantity: Dim | None) -> int:
        """A quantity at the sizes of the report, for checks that compare costs; 0 for None.

        Sizes without a value (data-dependent, or left open by --open) count as OTHER, within their range.
        """
        if quantity is None or isinstance(quantity, int):
            return quantity or 0
        return evaluate(quantity, {name: self._size(name) for name in quantity.symbols}) or 0

    def _size(self, name: str) -> int:
        info = self.report.symbols.get(name)
        if info is None:
            return OTHER
        if info.value is not None:
            return info.value
        return min(max(OTHER, info.minimum or 0), info.maximum or OTHER)

    def freed(self, call: Call, kept: Collection[str] = (), gone: set[int] | None = None) -> Freed:
        """What removing a call saves: the call, and the calls and stored tensors that only it needs.

        kept: values that stay. gone: places of calls that other fixes remove; those removed here are added.
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
        moved = total(each.bytes for each in left)
        return Freed(total(each.flops for each in left), moved, sum(stored.values()))

    def is_open(self, size: Expr) -> bool:
        """True if the user gave no sizes that determine this one."""
        symbols = self.report.symbols.items()
        given = {name: info.value or 0 for name, info in symbols if info.given_by == "user"}
        return evaluate(size, given) is None

    def graded(self, flops: Dim | None, bytes: Dim | None) -> Severity:
        """A warning if the cost is a notable share of the whole, else a note."""
        return "warning" if self.share(flops, bytes) > NOTABLE_SHARE else "note"

    def saving(
        self, text: str, call: Call, saved: Freed, *edits: Edit, exact: bool = True, graded: bool = True
    ) -> Observation:
        """The observation that removing a call, or an equivalent change, saves this."""
        severity = self.graded(saved.flops, saved.bytes) if graded else None
        return Observation(text, call, saved.flops, saved.bytes, severity, edits, exact, saved.stored)

    def share(self, flops: Dim | None, bytes: Dim | None) -> float:
        """The share in all FLOPs or in all bytes, whichever is larger."""
        parts = zip((self.at(flops), self.at(bytes)), self._whole, strict=True)
        return max(part / whole if whole else 0.0 for part, whole in parts)

    @cached_property
    def _whole(self) -> tuple[int, int]:
        cost = self.report.total()
        return self.at(cost.flops), self.at(cost.moved_bytes)


def nested(node: Any) -> list[Any]:
    """The GraphProtos among the attributes of a NodeProto."""
    return [graph for attribute in node.attribute for graph in graphs_of(attribute)]


def held(node: Any) -> list[Any]:
    """The TensorProtos among the attributes of a NodeProto."""
    alone = [attribute.t for attribute in node.attribute if attribute.HasField("t")]
    return [*alone, *(tensor for attribute in node.attribute for tensor in attribute.tensors)]


Run = Callable[[Model], Iterable["Observation"]]

Kind = Literal["correctness", "safety", "cost", "time"]
Reads = Literal["file", "graph", "report"]


class Edit(NamedTuple):
    """One change of the file, a part of a fix. Values are named as in the program."""

    # instead: all uses of `value`, among the program's results too, become uses of `other`, which holds the same.
    # operand: the call that makes `value` takes `other` as its first operand; numbers: its new order of axes.
    # stored: `value` is computed once and stored. scalar, vector: `value` becomes a stored int64, or several: `numbers`.
    # dropped: the unused `value` is removed with the call that makes it. functions: uncalled functions are removed.
    # undeclared: the file no longer states the type of `value`. sized: it states the size numbers[1] for axis numbers[0].
    # folded: the batch norm that makes `value` becomes part of the convolution before it.
    # attention: `value` is made by one Attention of `operands`, with its scores multiplied by `scale`.
    kind: (
        Literal["instead", "operand", "stored", "scalar", "vector", "dropped"]
        | Literal["functions", "undeclared", "sized", "folded", "attention"]
    )
    value: str = ""
    other: str = ""
    numbers: tuple[int, ...] = ()
    operands: tuple[str, ...] = ()
    scale: float = 1.0


class Observation(NamedTuple):
    """One problem that a check found."""

    message: str
    at: Any = None  # the call it is about, as a NodeProto or a `view.Call`; None for the whole model
    flops: Dim | None = 0  # what it costs in one run, like the bytes
    bytes: Dim | None = 0
    severity: Severity | None = None  # None for the check's own severity
    edits: tuple[Edit, ...] = ()  # the changes that fix it, all or none; () if only a person can
    exact: bool = True  # whether results stay the same bit for bit
    stored: int = 0  # bytes of stored tensors
    is_small: bool = False  # reported although it costs next to nothing


class Check(Record, frozen=True):
    """One check."""

    code: str
    name: str
    kind: Kind
    severity: Severity  # of its observations that state none of their own
    advice: str  # what the user should do, one sentence; "" if the last paragraph of the docstring says it
    # "file" for a check of the file's content, "graph" for one of a valid program, "report" for one of times.
    reads: Reads
    run: Callable[[Any], Iterable[Any]]

    @property
    def paragraphs(self) -> list[str]:
        """The docstring, one line for each paragraph."""
        return [" ".join(paragraph.split()) for paragraph in docstring(self.run).split("\n\n")]

    @property
    def explanation(self) -> str:
        """What the check looks for and why that matters, one line for each paragraph."""
        return "\n\n".join(text for text in self.paragraphs if not text.startswith(_FIX))

    @property
    def fix(self) -> str:
        """What the user should do, one sentence."""
        return self.advice or self.paragraphs[-1].removeprefix(_FIX).removesuffix(".")

    @property
    def summary(self) -> str:
        """The first sentence of the explanation."""
        sentence = re.match(r".*?[.](?=\s|$)", self.explanation, re.DOTALL)
        return self.explanation if sentence is None else sentence[0]

    @property
    def info(self) -> RuleInfo:
        """What holds for all findings of the check."""
        return RuleInfo(self.name, self.summary, f"{self.explanation}\n\nFix: {self.fix}.", self.severity)


_FIX = "Fix: "
CHECKS: dict[str, Check] = {}  # complete once `audit.checks` was called


def check(
    code: str, name: str, severity: Severity, *, reads: Reads = "graph", kind: Kind | None = None
) -> Callable[[Run], Run]:
    """Register a check, whose docstring ends in what to do. A fact that an analysis reports too has the analysis' code.

    kind: by default GF20x and GF21x are about correctness, GF22x and GF23x about safety, GF24x to GF26x about cost.
    """
    number = int(code[2:])
    by_number: Kind = "correctness" if number < 220 else "safety" if number < 240 else "cost"

    def register(function: Run) -> Run:
        assert code not in CHECKS, code
        CHECKS[code] = Check(code, name, kind or by_number, severity, "", reads, function)
        return function

    return register
