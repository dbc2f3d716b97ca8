"""Computes what a model costs from its exported file: FLOPs, bytes, memory. Nothing in the file is run.

`graphflops.analyze("model.pt2", dims={"s27": 2048}).total().matrix_flops` is the shortest way to a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "Training",
    "__version__",
    "analyze",
    "audit",
    "capture",
    "check",
    "compare",
    "fits",
    "load",
    "mfu",
    "mfu_callback",
    "plan",
    "record",
    "rule",
    "serve",
    "statement",
    "validate",
]

if TYPE_CHECKING:
    from graphflops.budget.run import check
    from graphflops.capturing.step import record
    from graphflops.comparison.models import compare
    from graphflops.derived.items import mfu
    from graphflops.exporters import load
    from graphflops.exporters.live import capture
    from graphflops.fitting.fits import fits
    from graphflops.loading import analyze
    from graphflops.onnx_audit.audit import audit
    from graphflops.planning.plan import plan
    from graphflops.rules import rule
    from graphflops.runtime.mfu_callback import mfu_callback
    from graphflops.runtime.validate import validate
    from graphflops.serving.plan import serve
    from graphflops.statements.statement import statement
    from graphflops.training import Training
    from graphflops.version import __version__

_HOME = {
    "Training": "graphflops.training",
    "__version__": "graphflops.version",
    "analyze": "graphflops.loading",
    "audit": "graphflops.onnx_audit.audit",
    "capture": "graphflops.exporters.live",
    "check": "graphflops.budget.run",
    "compare": "graphflops.comparison.models",
    "fits": "graphflops.fitting.fits",
    "load": "graphflops.exporters",
    "mfu": "graphflops.derived.items",
    "mfu_callback": "graphflops.runtime.mfu_callback",
    "plan": "graphflops.planning.plan",
    "record": "graphflops.capturing.step",
    "rule": "graphflops.rules",
    "statement": "graphflops.statements.statement",
    "serve": "graphflops.serving.plan",
    "validate": "graphflops.runtime.validate",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `--help` does not wait for the rules, nor a file for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'graphflops' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
