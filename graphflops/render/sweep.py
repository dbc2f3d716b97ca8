"""A sweep over sizes as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render import listing
from graphflops.render.text import memory, number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphflops.render import Format
    from graphflops.sweep import Point


def sweep(points: Sequence[Point], form: Format, *, width: int = 120, color: bool = False) -> str:
    """A line a point; JSON and CSV hold whole numbers; `?` is what another size decides that has no value."""
    heads, rows = cells(points, exact=form in ("json", "csv"))
    return listing(heads, rows, form, figures=True, width=width, color=color)


def cells(points: Sequence[Point], *, exact: bool) -> tuple[list[str], list[list[str | int]]]:
    """Heads and rows of the table. exact: whole numbers, for programs."""
    count: Callable[[int], str | int] = (lambda n: n) if exact else number
    held: Callable[[int], str | int] = (lambda n: n) if exact else memory
    has_masks = any(point.cost["masked_flops"] for point in points)
    names = [*points[0].sizes] if points else []
    heads = [*names, *_heads(exact, has_masks)]
    rows = []
    for point in points:
        flops, masked = point.cost["matrix_flops"], point.cost["masked_flops"]
        visible = None if flops is None or masked is None else flops - masked
        intensity = "" if point.intensity is None else f"{point.intensity:.4g}"
        row: list[str | int] = [size if exact else f"{size:,}" for size in point.sizes.values()]
        row += [_cell(flops, count), *([_cell(visible, count)] if has_masks else [])]
        row += [_cell(point.cost["vector_flops"], count), _cell(point.cost["transcendentals"], count)]
        row += [_cell(point.traffic, held), intensity, _cell(point.peak_bytes, held)]
        rows.append(row)
    return heads, rows


def _heads(exact: bool, has_masks: bool) -> list[str]:
    if exact:
        visible = ["visible_flops"] if has_masks else []
        return [
            "matrix_flops",
            *visible,
            "vector_flops",
            "transcendentals",
            "bytes",
            "flops_per_byte",
            "peak_bytes",
        ]
    visible = ["visible"] if has_masks else []
    return ["FLOPs", *visible, "vector", "transcendental", "bytes", "FLOP/B", "peak memory"]


def _cell(value: int | None, shown: Callable[[int], str | int]) -> str | int:
    return "?" if value is None else shown(value)
