"""All checks by code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.errors import ModelError
from graphflops.onnx_audit import layout, operators, precision, safety, structure, types, waste, weights  # noqa: F401
from graphflops.onnx_audit.registry import CHECKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphflops.onnx_audit.registry import Check


def checks() -> dict[str, Check]:
    """Every check, in the order of the codes."""
    return dict(sorted(CHECKS.items()))


def chosen(select: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Codes of the checks that are selected and not ignored; `select` and `ignore` hold codes or prefixes of codes.

    Raises ModelError for a prefix that matches no check.
    """
    for prefix in (*select, *ignore):
        if not prefix or not any(code.startswith(prefix) for code in CHECKS):
            raise ModelError(f"no check has the code {prefix!r}: `graphflops audit --explain all` lists them")
    selected = [code for code in checks() if not select or code.startswith(tuple(select))]
    return [code for code in selected if not ignore or not code.startswith(tuple(ignore))]
