"""All checks by code."""

from __future__ import annotations

from graphflops.onnx_audit import precision, safety, structure, types, waste  # noqa: F401
from graphflops.onnx_audit.registry import CHECKS, Check


def checks() -> dict[str, Check]:
    """Every check, in the order of the codes."""
    return dict(sorted(CHECKS.items()))
