"""What stands before and after a call: the modules, else the operators, that make what it reads and read what it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphflops.ops import operator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphflops.report import Row
    from graphflops.report.findings import Finding


class Neighbours:
    """The neighbours of the calls of a report's rows, by name of a call."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.makers: dict[str, Row] = {}
        self.readers: dict[str, Row] = {}
        self.rows: dict[str, Row] = {}
        for row in rows:
            self.rows.setdefault(row.node, row)
            self.makers.update((name, row) for name, _ in row.outputs)
            for name, _ in row.inputs:
                self.readers.setdefault(name, row)

    def between(self, node: str) -> str:
        """`layer3.5.conv3 and layer4`; "" for no call, and where its own module says as much."""
        row = self.rows.get(node)
        if row is None:
            return ""
        before = next((self.makers[name] for name, _ in row.inputs if name in self.makers), None)
        after = next((self.readers[name] for name, _ in row.outputs if name in self.readers), None)
        if row.module and all(one is None or one.module == row.module for one in (before, after)):
            return ""
        ends = (_place(before, row, "the input"), _place(after, row, "the result"))
        return " and ".join(ends)


def with_neighbours(findings: Iterable[Finding], rows: Iterable[Row]) -> list[Finding]:
    """The findings, each with the neighbours of its call."""
    beside = Neighbours(rows)
    return [replace(finding, between=beside.between(finding.node)) for finding in findings]


def _place(row: Row | None, own: Row, end: str) -> str:
    if row is None:
        return end
    return row.module if row.module and row.module != own.module else operator(row.op).word
