"""Refuses sizes at which torch refuses the program: what its guards demand of input axes."""

from __future__ import annotations

from collections.abc import Mapping

from graphflops.dims import Dim, Expr, evaluate
from graphflops.errors import ModelError, shown


def refuse_broken(guards: Mapping[str, Dim], before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Raise ModelError for a guard that holds at the sizes `before`, and does not at those `after`.

    before, after: input axes whose sizes are known. A guard that the export's own sizes break is none of torch's: ignored.
    """
    for text, condition in guards.items():
        if not isinstance(condition, Expr) or evaluate(condition, after) != 0:
            continue
        if not evaluate(condition, before):
            continue
        moved = sorted(name for name in condition.symbols if after[name] != before[name])
        given = ", ".join(f"{shown(name)} = {after[name]}" for name in moved)
        told = f"the program was exported for {shown(text)}, which torch checks"
        raise ModelError(f"{given}: {told}: give a size that it takes, or export it anew")


def known_sizes(axes: Mapping[str, Dim], values: Mapping[str, int]) -> dict[str, int]:
    """The axes of known sizes. values: of symbols, or of the axes themselves."""
    found = {axis: values.get(axis, evaluate(size, values)) for axis, size in axes.items()}
    return {axis: size for axis, size in found.items() if size is not None}
