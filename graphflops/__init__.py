"""What a model costs, from its exported file: FLOPs, bytes, memory. Nothing in the file is run.

`graphflops.analyze("model.pt2", dims={"s27": 2048}).total().matrix_flops` is the shortest way to a number.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphflops.budget.run import check as check
    from graphflops.capturing.step import record as record
    from graphflops.comparison.models import compare as compare
    from graphflops.derived.items import mfu as mfu
    from graphflops.exporters import load as load
    from graphflops.exporters.live import capture as capture
    from graphflops.fitting.fits import fits as fits
    from graphflops.loading import analyze as analyze
    from graphflops.onnx_audit.audit import audit as audit
    from graphflops.planning.plan import plan as plan
    from graphflops.rules import rule as rule
    from graphflops.runtime.mfu_callback import mfu_callback as mfu_callback
    from graphflops.runtime.validate import validate as validate
    from graphflops.serving.plan import serve as serve
    from graphflops.statements.statement import statement as statement
    from graphflops.training import Training as Training
    from graphflops.version import __version__ as __version__

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
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `--help` does not wait for the rules, nor a file for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'graphflops' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
