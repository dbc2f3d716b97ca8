"""The table of a scan as one HTML file: sortable and filterable, opened from disk, without network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphflops.base.units import memory, number, parameters, percent
from graphflops.render.html.data import inert
from graphflops.render.html.fragment import escaped, read
from graphflops.render.html.fragment import page as whole
from graphflops.render.text import count_of, safe
from graphflops.scan import store
from graphflops.scan.measure import RESULTS

# Head, column, and how its numbers are written: n count, p parameters, b bytes, s seconds, "" text.
_SHOWN = (
    ("model", "path", ""),
    ("binding", "binding", ""),
    ("inputs", "inputs", ""),
    ("assumed", "assumed", ""),
    ("status", "status", ""),
    ("FLOPs", "matrix_flops", "n"),
    ("params", "parameters", "p"),
    ("read", "read_bytes", "b"),
    ("written", "written_bytes", "b"),
    ("peak memory", "peak_bytes", "b"),
    ("time", "time_seconds", "s"),
    ("attentions", "attentions", "n"),
    ("errors", "audit_errors", "n"),
    ("warnings", "audit_warnings", "n"),
    ("unknown calls", "unknown", "n"),
    ("producer", "producer", ""),
    ("message", "message", ""),
    ("contradiction", "contradiction", ""),
)
_TEXT = 300
_LISTED = 6  # inputs or sizes of a row
_HERE = Path(__file__).parent


def page(folder: str, name: str = "") -> str:
    """The table in a folder as a page of that name, or its own; FileError where there is none."""
    columns = [column for _, column, _ in _SHOWN]
    formulas = [f"{column}_formula" for column in columns if f"{column}_formula" in RESULTS]
    rows = list(store.rows_of(store.read(folder, columns=[*columns, *formulas])))
    rows.sort(key=lambda row: (-(row["matrix_flops"] or -1), row["path"], row["binding"]))
    kept = [
        index for index, name in enumerate(columns) if any(row[name] not in (None, "", []) for row in rows)
    ]
    data = {
        "heads": [[_SHOWN[index][0], _SHOWN[index][2]] for index in kept],
        "rows": [
            [*(_cell(row[columns[index]]) for index in kept), _assumed(row, columns, kept)] for row in rows
        ],
    }
    name = name or folder
    body = f"""<h1>{escaped(name)}</h1>
<p>{escaped(_summary(rows))}</p>
<p><label>Filter: <input id="filter" type="search" placeholder="onnx error flops&gt;1e12"></label>
<span id="count"></span></p>
<noscript>The table needs the script of this page.</noscript>
<div class="room"><table id="table"><thead></thead><tbody></tbody></table></div>
<script type="application/json" id="data">{inert(json.dumps(data).encode())}</script>"""
    return whole(f"{name}: fleet", body, read(_HERE, "page.css"), read(_HERE, "page.js"))


def _assumed(row: dict[str, Any], columns: list[str], kept: list[int]) -> list[int]:
    """Places of the figures that an assumed size may have a part in."""
    if not row["assumed"]:
        return []
    open_ = {"time_seconds", *(name for name in columns if not (row.get(f"{name}_formula") or "0").isdigit())}
    known = [(place, columns[index]) for place, index in enumerate(kept)]
    return [place for place, name in known if name in open_ and row[name] is not None]


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        more = [f"… {len(value) - _LISTED:,} more"] if len(value) > _LISTED else []
        value = "; ".join([*value[:_LISTED], *more])
    return safe(value, _TEXT) if isinstance(value, str) else value


def _summary(rows: list[dict[str, Any]]) -> str:
    """How many rows of each status, and what they cost together."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    states = ", ".join(
        f"{count:,} {safe(name, 40)} ({percent(count, len(rows))} %)"
        for name, count in sorted(counts.items())
    )
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["binding"] or "", []).append(row)
    sums = (f"{safe(name, 80)}: " * (len(groups) > 1) + _together(group) for name, group in groups.items())
    assumed = sum(bool(row["assumed"]) for row in rows)
    said = f"{count_of(len(rows), 'row')}: {states}. {'; '.join(sums)}."
    if assumed:
        marked = "a ~ marks them and what follows from them."
        said += f" Sizes were assumed for {count_of(assumed, 'row')}: {marked}"
    return said


def _together(rows: list[dict[str, Any]]) -> str:
    """What rows of one binding cost in all."""
    flops = sum(row["matrix_flops"] or 0 for row in rows)
    held = sum(row["parameters"] or 0 for row in rows)
    moved = sum((row["read_bytes"] or 0) + (row["written_bytes"] or 0) for row in rows)
    return f"{number(flops)} FLOPs, {parameters(held)} parameters, {memory(moved)} moved in all"
