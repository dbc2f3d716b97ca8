"""A report as a graph for Graphviz: modules as nodes, the tensors that pass between them as edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.dims import total
from graphflops.render import summary
from graphflops.render.ledger import Ledger, traffic
from graphflops.render.text import safe, short_type

if TYPE_CHECKING:
    from graphflops.dims import Dim
    from graphflops.render.ledger import Group
    from graphflops.report import Report

_NODES = 60  # default depth: the deepest with about so many nodes
_DEEPEST = 12
_WORDS = 60  # characters of a name
_SHADES = 9  # of Graphviz's scheme "blues9": the darker, the larger the share of the work


def dot(report: Report, *, depth: int | None = None) -> str:
    """Modules `depth` levels in (None: as many levels as a page holds), with what flows between them.

    Several tensors from one module to another are one edge with their bytes together.
    """
    ledger = Ledger(report)
    names = _cut(report, _fitting(report) if depth is None else depth)
    groups: dict[str, dict[int, int]] = {}
    for name, kind in zip(names, ledger.of, strict=True):
        counts = groups.setdefault(name, {})
        counts[kind] = counts.get(kind, 0) + 1
    numbers = {name: f"m{index}" for index, name in enumerate(groups)}
    whole = ledger.rest([ledger.group(counts) for counts in groups.values()])
    lines = [
        "digraph graphflops {",
        f"  label={_quoted(summary.title(report))};",
        '  labelloc=t; rankdir=TB; node [shape=box, style="rounded,filled", fontname=Helvetica, fontsize=11];',
        "  edge [fontname=Helvetica, fontsize=9, color=gray40, fontcolor=gray30];",
    ]
    for name, counts in groups.items():
        lines.append(f"  {numbers[name]} [{_node(report, ledger, name, ledger.group(counts), whole)}];")
    edges, inputs = _edges(report, names)
    for name, used in inputs.items():
        node = f"i{len(lines)}"
        lines.append(f"  {node} [label={_quoted(safe(name, _WORDS))}, shape=plain, style=solid];")
        lines += [f"  {node} -> {numbers[user]} [{_bytes(ledger, size)}];" for user, size in used.items()]
    lines += [
        f"  {numbers[source]} -> {numbers[target]} [{_bytes(ledger, total(tensors.values()))}];"
        for (source, target), tensors in edges.items()
    ]
    return "\n".join([*lines, "}", ""])


def _cut(report: Report, depth: int) -> list[str]:
    """By row, the module `depth` levels in that the call is part of."""
    return [".".join(row.module.split(".")[:depth]) if depth else "" for row in report.rows]


def _fitting(report: Report) -> int:
    depth = 1
    while depth < _DEEPEST:
        deeper = len({*_cut(report, depth + 1)})
        if deeper > _NODES or deeper == len({*_cut(report, depth)}):
            return depth
        depth += 1
    return depth


def _edges(
    report: Report, names: list[str]
) -> tuple[dict[tuple[str, str], dict[str, Dim]], dict[str, dict[str, Dim]]]:
    """Bytes by tensor between each two modules, and by module what it reads of each input of the program."""
    made: dict[str, str] = {}
    edges: dict[tuple[str, str], dict[str, Dim]] = {}
    inputs: dict[str, dict[str, Dim]] = {}
    given = {entry.name for entry in report.inputs}
    for row, name in zip(report.rows, names, strict=True):
        for tensor, kind in row.inputs:
            source = made.get(tensor)
            if source is not None and source != name:
                edges.setdefault((source, name), {})[tensor] = kind.nbytes
            elif source is None and tensor in given:
                inputs.setdefault(tensor, {})[name] = kind.nbytes
        for tensor, _ in row.outputs:
            made[tensor] = name
    return edges, inputs


def _node(report: Report, ledger: Ledger, name: str, group: Group, whole: Group) -> str:
    kind = short_type(report.modules.get(name, ""))
    cost = group.cost
    least = ">= " if group.unknown else ""
    share = ledger.numbers.share(cost.matrix_flops, whole.cost.matrix_flops)
    part = f" ({share} %)" if share else ""
    lines = [
        safe(name, _WORDS) or "(the model itself)",
        safe(kind, _WORDS),
        f"{least}{ledger.numbers.count(cost.matrix_flops)} FLOPs{part}",
        f"{least}{ledger.numbers.memory(traffic(cost))} moved",
        f"{group.unknown:,} of {group.calls:,} calls unknown" if group.unknown else "",
    ]
    shade = 1 + round(float(share.lstrip("<") or 0) / 100 * (_SHADES - 1))
    text = "white" if shade > 5 else "black"
    alarm = ", color=red" if group.unknown else ""
    label = _quoted("\n".join(line for line in lines if line))
    return f"label={label}, colorscheme=blues9, fillcolor={shade}, fontcolor={text}{alarm}"


def _bytes(ledger: Ledger, size: Dim) -> str:
    return f"label={_quoted(ledger.numbers.memory(size))}"


def _quoted(text: str) -> str:
    r"""A quoted string for Graphviz, in which only line breaks are escapes (`\n`)."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
