"""What the two programs of a comparison are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.render.text import safe, short_type

if TYPE_CHECKING:
    from graphflops.comparison.result import Comparison
    from graphflops.report import Report


def title(report: Report) -> str:
    """The file's name, else the type of the model."""
    name = report.origin.path.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return safe(name or short_type(report.modules.get("", "")) or "program", 80)


def titles(comparison: Comparison) -> tuple[str, str]:
    """What the two are called; by their whole paths where their names are the same."""
    both = title(comparison.old), title(comparison.new)
    if both[0] != both[1]:
        return both
    paths = comparison.old.origin.path, comparison.new.origin.path
    return both if paths[0] == paths[1] else (safe(paths[0], 80), safe(paths[1], 80))
