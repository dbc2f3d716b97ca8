"""What stands in a box: its lines of text, how large the text makes it, and how much of the whole it costs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from graphflops.base.units import memory, number, parameters, percent, seconds
from graphflops.render.picture.layout import Box
from graphflops.render.picture.nest import Item
from graphflops.render.text import count_of, operator_name, safe
from graphflops.report.size_names import named

By = Literal["flops", "bytes", "time", "memory"]
WORDS = {"flops": "FLOPs", "bytes": "bytes moved", "time": "time", "memory": "memory"}
_UNITS = {"flops": " FLOPs", "bytes": " moved", "time": "", "memory": " held"}
# The mark in the corner of a box, and its word.
MARKS = {
    "new": ("+", "added"),
    "gone": ("−", "removed"),
    "changed": ("≠", "changed"),
    "different": ("≠", "differs"),
    "explained": ("≈", "differs, explained"),
    "not executed": ("○", "not executed"),
    "on path": ("●", "on the longest chain"),
    "bottleneck": ("◆", "everything passes through it"),
    "unused": ("∅", "nothing reads it"),
}
_FIRST, _SMALL = 12.5, 10.5  # sizes of the text of a label, of all other text
_LETTERS = 40  # of a label
LINE = 15.0
_GROWTH = 44.0  # height that the whole cost would add to a box; its root, so that a tenth is seen
# Widths of characters by unit of size, of the widest common font: DejaVu Sans. Small letters and digits: 0.64.
_WIDTHS = {
    **dict.fromkeys("ijl|'!,.:;I ", 0.33),
    **dict.fromkeys('frt()[]-/"', 0.41),
    **dict.fromkeys("mwMW%@—", 0.98),
}


@dataclass(frozen=True, slots=True)
class Face:
    """What a box shows. share: of the whole, from 0 to 1. out: beside the line that leaves it. about: all its facts."""

    lines: tuple[str, ...]
    share: float
    out: str
    about: tuple[str, ...]
    kind: str
    status: str
    stage: int | None
    is_unknown: bool
    is_many: bool
    opens: bool

    @property
    def box(self) -> Box:
        """The room that it takes."""
        sizes = [_FIRST, *[_SMALL] * (len(self.lines) - 1)]
        texts = zip(self.lines, sizes, strict=True)
        width = max(text_width(line, size, bold=size == _FIRST) for line, size in texts)
        high = 11 + LINE * len(self.lines) + _GROWTH * self.share**0.5
        width += 26 + 14 * (bool(self.status or self.is_unknown) + self.opens)
        aside = text_width(self.out, _SMALL) + 10 if self.out else 0.0
        return Box(round(max(width, 44.0), 1), round(high, 1), aside)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """The width of a text at most."""
    wide = sum(
        _WIDTHS.get(c, 0.64 if c.islower() or c.isdigit() else 0.76 if c < "⺀" else 1.05) for c in text
    )
    return size * wide * (1.08 if bold else 1.0)


def face(item: Item, by: By, whole: float, leaving: Collection[Mapping[str, Any]]) -> Face:
    """What a box shows. whole: the figure of the whole program. leaving: the values that leave the box."""
    facts = item.facts
    kind = str(facts.get("kind", "call"))
    label = safe(item.label, _LETTERS) + (f" × {item.count:,}" if item.count > 1 else "")
    is_work = kind in ("call", "module")
    what = safe(item.what, _LETTERS)
    status = str(facts.get("status", ""))
    word = MARKS[status][1] if status in MARKS else ""
    stage = facts.get("stage")
    second = " · ".join(text for text in (what, word, f"stage {stage}" if stage is not None else "") if text)
    exact = facts.get("exact", "exact")
    cost = figure(facts, by) if is_work else ""
    value = facts.get(by) or 0
    share = min(value * item.times / whole, 1.0) if whole else 0.0
    if cost and share:
        cost = f"{cost} · {percent(share, 1)} %"
    return Face(
        tuple(line for line in (label, second, cost) if line),
        share,
        carried(leaving),
        _about(item, leaving),
        kind if is_work else "port",
        status if status in MARKS else "",
        stage if isinstance(stage, int) else None,
        is_work and exact == "unknown",
        item.count > 1,
        item.inside is not None,
    )


def figure(facts: Mapping[str, Any], by: By) -> str:
    """A cost in words; "" for none."""
    exact, value = facts.get("exact", "exact"), facts.get(by)
    if value is None or (exact == "unknown" and not value):
        return "cost unknown" if exact == "unknown" else ""
    if not value and exact == "exact":
        return ""
    return f"{'≥ ' if exact == 'at least' else ''}{quantity(value, by)}{_UNITS[by]}"


def quantity(value: float, name: str) -> str:
    """An amount of what is named, without its unit where that is FLOPs or a count."""
    if name == "time":
        return seconds(value)
    return (memory if name in ("bytes", "memory") else number)(round(value))


def carried(leaving: Collection[Mapping[str, Any]]) -> str:
    """Values in words: the shape of one, the number of several, their bytes."""
    if not leaving:
        return ""
    shapes = list(dict.fromkeys(_shape(facts) for facts in leaving if facts.get("shape")))
    counts = [facts.get("values", 1) if "shape" in facts else 1 for facts in leaving]
    sizes = [
        facts["bytes"] * count // facts.get("count", 1)
        for facts, count in zip(leaving, counts, strict=True)
        if facts.get("bytes") is not None
    ]
    many = f"{sum(counts)} of " if sum(counts) > 1 else ""
    what = f"{many}{shapes[0]}" if len(shapes) == 1 else count_of(sum(counts), "value") if many else ""
    size = memory(sum(sizes)) if len(sizes) == len(counts) else ""
    return " · ".join(text for text in (what, size) if text)


def _shape(facts: Mapping[str, Any]) -> str:
    return safe(str(facts.get("shape", ""))[1:-1].replace(", ", "×") or "scalar", 30)


def _about(item: Item, leaving: Collection[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every fact of a box, a line each."""
    facts = item.facts
    lines = [
        ("", str(facts.get("module") or item.label)),
        ("type", str(facts.get("module_type", ""))),
        ("operator", operator_name(str(facts.get("op", "")))),
        ("source", str(facts.get("source", ""))),
        ("equal parts, figures of all", f"{item.count:,}" if item.count > 1 else ""),
        *(("", figure(facts, name)) for name in ("flops", "bytes", "time", "memory")),
        ("formula", named(str(facts.get("flops_formula", "")), {})),
        ("parameters", parameters(facts["parameters"]) if facts.get("parameters") else ""),
        ("returns", "; ".join(f"{v['shape']} {v.get('dtype', '')}" for v in [*leaving][:4] if "shape" in v)),
        ("note", str(facts.get("note", ""))),
    ]
    return tuple(f"{name}: {text}" if name else text for name, text in lines if text)
