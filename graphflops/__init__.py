"""What a model costs, from its exported file, before anyone runs it.

`graphflops.analyze("model.pt2", dims={"s27": 2048}).total().matrix_flops` is the shortest way to a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["analyze", "capture", "load", "rule", "validate"]

if TYPE_CHECKING:
    from graphflops.analysis import analyze
    from graphflops.exporters import load
    from graphflops.exporters.live import capture
    from graphflops.rules import rule
    from graphflops.runtime.validate import validate

_HOME = {
    "analyze": "graphflops.analysis",
    "capture": "graphflops.exporters.live",
    "load": "graphflops.exporters",
    "rule": "graphflops.rules",
    "validate": "graphflops.runtime.validate",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `--help` must not wait for the rules, nor a file for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'graphflops' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
