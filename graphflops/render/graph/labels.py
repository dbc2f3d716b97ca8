"""What nodes and edges of a graph are called on a drawing, and how dark a node is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphflops.base.units import memory, number, percent, seconds
from graphflops.render.text import safe, short_type

if TYPE_CHECKING:
    import networkx

    from graphflops.structure.answer import Colour

_WORDS = 60  # characters of a name
SHADES = 9


def amount(data: dict[str, Any], name: str, *, exact: bool = False) -> str | float:
    """A quantity of a node: its number, else its formula; `?` where it is unknown, with `>=` where some of it is."""
    least = ">= " if data.get("exact") == "at least" else ""
    if data.get(name) is None:
        formula = data.get(f"{name}_formula")
        unknown = "" if data.get("exact", "exact") == "exact" else "?"
        return f"{least}{safe(formula, 40)}" if formula else "" if exact else unknown
    if exact:
        return data[name]  # type: ignore[no-any-return]
    text = seconds if name == "time" else memory if name in ("bytes", "memory", "weight_bytes") else number
    return f"{least}{text(data[name])}"


class Labels:
    """The texts of one graph. by: the quantity that nodes are coloured by, as a share of the whole program."""

    def __init__(self, graph: networkx.MultiDiGraph, by: Colour) -> None:
        self.graph, self.by = graph, by

    def node(self, data: dict[str, Any]) -> list[str]:
        """Name, type, costs and share of a node; name and type of tensor of an input, weight or result."""
        times = f" (x{data['count']:,})" if data["count"] > 1 else ""
        lines = [safe(data["label"], _WORDS) + times]
        if data["kind"] not in ("call", "module"):
            return [*lines, *([f"{data['dtype']} {safe(data['shape'], _WORDS)}"] if "shape" in data else [])]
        lines += [safe(short_type(data.get("module_type", "")), _WORDS)] if data["kind"] == "module" else []
        if data["exact"] == "unknown":
            return [*filter(None, lines), "cost unknown"]
        share = self.share(data)
        part = "" if share is None else f" ({percent(share, 1)} %)"
        quantities = dict.fromkeys(("flops", "bytes", self.by))
        words = {"flops": "FLOPs", "bytes": "moved", "memory": "alive", "time": ""}
        lines += [
            f"{amount(data, name)} {words[name]}{part if name == self.by else ''}".replace("  ", " ").strip()
            for name in quantities
        ]
        return [line for line in lines if line]

    def share(self, data: dict[str, Any]) -> float | None:
        """The part of the whole program's cost that is in a node; None where that is not known."""
        whole = self.graph.graph.get(f"total_{self.by}")
        return (
            data[self.by] / whole
            if whole and self.by in data and data["kind"] in ("call", "module")
            else None
        )

    def shade(self, data: dict[str, Any]) -> int:
        """How dark a node is, from 1 to `SHADES`."""
        return 1 + round(min(self.share(data) or 0, 1) * (SHADES - 1))

    def edge(self, data: dict[str, Any]) -> str:
        """Shape and bytes of what goes along an edge; "" for a size."""
        times = f"{data['count']:,} x " if data["count"] > 1 else ""
        return (
            f"{times}{safe(data['shape'], _WORDS)} {amount(data, 'bytes')}".strip() if "shape" in data else ""
        )
