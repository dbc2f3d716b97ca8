"""Costs and sizes as attributes of nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphflops.cost import Cost
from graphflops.dims import Dim, Expr
from graphflops.graph import Input
from graphflops.memory.ledger import live_bytes
from graphflops.report import Report, Row
from graphflops.report.size_names import called
from graphflops.tensor import TensorType

Attributes = dict[str, Any]


class Measures:
    """Costs and sizes as attributes: numbers at the known sizes, and formulas where they hold a size that is left open.

    Texts name sizes as the report and `--dim` do, `ids[0]`: the names that exporters make up mean nothing outside of a file.
    What is not known, or empty, is left out: GraphML holds neither None nor an empty text.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.is_timed = bool(report.device)
        self.names = report.names
        # Of a value that nobody makes, a saved report does not tell whether it is a parameter.
        self.no_parameters: Attributes = {} if report.program is None else {"parameters": 0}
        self.known: dict[tuple[str, int, int], Attributes] = {}

    def amount(self, name: str, quantity: Dim) -> Attributes:
        """A quantity under its name, and its formula."""
        value = self.report.value(quantity)
        found: Attributes = {} if value is None else {name: value}
        if isinstance(quantity, Expr):
            found[f"{name}_formula"] = called(str(quantity), self.names)
        return found

    def tensor(self, typed: TensorType | None) -> Attributes:
        """Shape, element type and bytes of a value; nothing for one that is no tensor."""
        if typed is None:
            return {}
        shape = f"[{', '.join(map(str, typed.shape))}]"
        moved = self.amount("bytes", typed.nbytes)
        return {"shape": called(shape, self.names), "dtype": typed.dtype.name, **moved}

    def row(self, row: Row) -> Attributes:
        """What one call costs."""
        key = (row.state, id(row.cost), id(row.backward))
        if key not in self.known:
            self.known[key] = self.costs([row])
        if row.time is None or row.state == "unknown":
            return self.known[key]
        return self.known[key] | self.seconds([row])

    def costs(self, rows: Iterable[Row]) -> Attributes:
        """What calls cost together; a cost that stands in many rows is added once. exact: whether all of them are known."""
        forward: dict[int, tuple[Cost, int]] = {}
        backward: dict[int, tuple[Cost, int]] = {}
        counted = unknown = 0
        for row in rows:
            counted += 1
            if row.state == "unknown":
                unknown += 1
                continue
            for costs, cost in ((forward, row.cost), (backward, row.backward)):
                if cost is not None:
                    costs[id(cost)] = (cost, costs.get(id(cost), (cost, 0))[1] + 1)
        exact = "exact" if not unknown else "unknown" if unknown == counted else "at least"
        if exact == "unknown":
            return {"exact": exact}
        found = self.cost(_sum(forward)) | {"exact": exact}
        if backward:
            found |= {f"backward_{name}": value for name, value in self.cost(_sum(backward)).items()}
        return found

    def cost(self, cost: Cost) -> Attributes:
        """Matrix FLOPs, vector FLOPs, and bytes read and written."""
        return {
            **self.amount("flops", cost.matrix_flops),
            **self.amount("vector_flops", cost.vector_flops),
            **self.amount("bytes", cost.read_bytes + cost.written_bytes),
        }

    def seconds(self, rows: Iterable[Row]) -> Attributes:
        """Time of calls on the device; a call that launches nothing takes none."""
        if not self.is_timed:
            return {}
        return {"time": float(sum(row.time.seconds for row in rows if row.time is not None))}

    def weight(self, entry: Input, typed: TensorType | None) -> Attributes:
        """Parameters, those of a tied weight once, and what it takes in memory."""
        found: Attributes = {"role": entry.role} | self.no_parameters
        if typed is not None:
            found |= self.amount("memory", typed.nbytes)
            if entry.role == "parameter" and not entry.alias_of:
                found |= self.amount("parameters", typed.numel)
        return found | ({"tied_to": entry.alias_of} if entry.alias_of else {})

    def totals(self) -> Attributes:
        """What the whole program costs, as attributes of the graph: `total_flops`."""
        report, time = self.report, self.report.totals.time
        found = {
            **self.cost(report.totals.cost),
            **self.amount("memory", report.totals.peak_bytes),
            "parameters": report.parameters,
            "exact": "at least" if report.coverage.unknown else "exact",
        }
        if time is not None:
            found["time"] = time.seconds
        return {f"total_{name}": value for name, value in found.items()}

    def live(self) -> dict[int, int]:
        """By row: bytes of activations alive while it runs; nothing where a size is not known."""
        timeline, sizes = self.report.memory, []
        for held in timeline.held:
            size = self.report.value(held.bytes)
            if size is None:
                return {}
            sizes.append(size)
        found: dict[int, int] = {}
        for row, size in zip(timeline.rows, live_bytes(timeline, sizes), strict=True):
            found[row] = max(size, found.get(row, 0))
        return found


def _sum(costs: dict[int, tuple[Cost, int]]) -> Cost:
    return Cost.sum(cost * times for cost, times in costs.values())
