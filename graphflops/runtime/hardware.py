"""Adds the GPU's hardware counters to a validation.

The program runs once more in a separate process under Nsight Compute, each call in a range named by the index of its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphflops.dims import evaluate
from graphflops.report import Report
from graphflops.runtime.counters import RangeCount, explain_row, measure, range_name
from graphflops.runtime.isolated import child_command
from graphflops.runtime.validation import CheckResult, NodeResult, Validation, Verdict


def with_counters(found: Validation, report: Report, options: Mapping[str, Any]) -> Validation:
    """The validation with counted bytes of each call, and a check of its FLOPs if it has any."""
    counted = measure(child_command("counters", {"model": found.path, "options": options}))
    nodes = tuple(_with(node, report, counted.get(range_name(node.row)), found.sizes) for node in found.nodes)
    return replace(found, nodes=nodes)


def _with(
    node: NodeResult, report: Report, counted: RangeCount | None, sizes: Mapping[str, int]
) -> NodeResult:
    row = report.rows[node.row]
    if row.regions and node.tile_flops is None:
        return node  # its nested calls are counted one by one
    if counted is None:
        if not node.flops or not node.turns:
            return node
        check = CheckResult("hardware", "different", str(node.flops), "0", "it launched no kernel")
        return replace(node, checks=(*node.checks, check))
    node = replace(node, counted_bytes=counted.dram_read + counted.dram_written)
    if not node.flops and not any(counted.tensor_flops.values()):
        return node
    told = explain_row(row, counted, lambda size: evaluate(size, sizes), tiles=node.tile_flops)
    if told.verdict == "unknown":
        return node
    verdict: Verdict = "equal" if told.verdict == "equal" else "explained" if told.explained else "different"
    check = CheckResult("hardware", verdict, str(told.model_flops), str(told.counted_flops), told.reason)
    return replace(node, checks=(*node.checks, check))
