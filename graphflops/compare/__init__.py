"""Two reports compared: `compare(old, new)`, a pure function, and the frozen types of its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.compare.comparison import (
    HELD,
    PHASES,
    WORK,
    CallChange,
    Comparison,
    Crossing,
    Fact,
    Figure,
    Fold,
    GroupChange,
    Growth,
    InputChange,
    ModuleChange,
    Remark,
    Size,
    Stored,
    Unknown,
)

if TYPE_CHECKING:
    from graphflops.report import Report

__all__ = [
    "HELD",
    "PHASES",
    "WORK",
    "CallChange",
    "Comparison",
    "Crossing",
    "Fact",
    "Figure",
    "Fold",
    "GroupChange",
    "Growth",
    "InputChange",
    "ModuleChange",
    "Remark",
    "Size",
    "Stored",
    "Unknown",
    "compare",
]


def compare(old: Report, new: Report) -> Comparison:
    """What differs between two programs, by their reports; raises DimError where a formula grows too large."""
    from graphflops.compare.whole import compared

    return compared(old, new)
