"""The columns of the tables of a scan, named as in the JSON report. No import of pyarrow: worker processes need none."""

from __future__ import annotations

from typing import Literal

from graphflops.cost import REPORTED

Kind = Literal["text", "number", "real", "texts"]
TableName = Literal["results", "calls", "modules", "findings"]

COSTS: tuple[str, ...] = (*(quantity.name for quantity in REPORTED), "peak_bytes")
HELD = ("parameters", "parameter_bytes", "buffer_bytes")
PHASES = ("backward", "optimizer", "step")
TIMES = ("seconds", "low", "high")
SEVERITIES = ("error", "warning", "note")
# What a row is of: the same in every table.
KEY: dict[str, Kind] = {"sha256": "text", "path": "text", "binding": "text"}


def _quantities(*prefixes: str) -> dict[str, Kind]:
    """Each cost as a number and as a formula."""
    kinds: tuple[tuple[str, Kind], ...] = (("", "number"), ("_formula", "text"))
    return {
        f"{prefix}{name}{suffix}": kind for prefix in prefixes for name in COSTS for suffix, kind in kinds
    }


RESULTS: dict[str, Kind] = {
    **KEY, "bytes": "number", **dict.fromkeys(("format", "producer", "status", "code", "message"), "text"),
    **_quantities(""), **dict.fromkeys(HELD, "number"), "counted": "number", "free": "number",
    "unknown": "number", "unknown_ops": "texts", "contradiction": "text", "attentions": "number",
    "attention_flops": "number", "attention_kv_bytes": "number",
    **{f"audit_{severity}s": "number" for severity in SEVERITIES},
    **_quantities(*(f"{phase}_" for phase in PHASES)), "device": "text", "time_bound": "text",
    **{f"time_{name}": "real" for name in TIMES}, "allocated_peak": "number", "reserved_peak": "number",
    "inputs": "texts", "assumed": "texts", "options": "text", "limits": "text", "seconds": "real",
    "modified": "number", "version": "text",
}  # fmt: skip
_WORK: dict[str, Kind] = {quantity.name: "number" for quantity in REPORTED}
CALLS: dict[str, Kind] = {
    **KEY, **dict.fromkeys(("node", "op", "module", "source", "state"), "text"), **_WORK,
}  # fmt: skip
MODULES: dict[str, Kind] = {
    **KEY, "module": "text", "type": "text", "calls": "number", "parameters": "number", **_WORK,
}  # fmt: skip
FINDINGS: dict[str, Kind] = {
    **KEY, **dict.fromkeys(("code", "name", "severity", "message", "module", "source"), "text"),
    "flops": "number", "moved_bytes": "number",
}  # fmt: skip
TABLES: dict[TableName, dict[str, Kind]] = {
    "results": RESULTS, "calls": CALLS, "modules": MODULES, "findings": FINDINGS,
}  # fmt: skip
