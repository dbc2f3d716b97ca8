"""Diagnostics: the name of each kind by its stable code."""

from __future__ import annotations

from graphflops.report import Diagnostic

DIAGNOSTICS = {
    "GF101": "unknown-operator", "GF102": "shape-mismatch", "GF103": "dtype-mismatch", "GF104": "rule-failed",
    "GF105": "result-count", "GF106": "size-outside-range", "GF107": "assumed-trainable",
    "GF108": "costly-order", "GF109": "nothing-trained", "GF110": "type-not-derived",
    "GF213": "declared-otherwise", "GF112": "sizes-merged", "GF209": "version-unknown",
    "GF210": "data-length", "GF207": "domain-not-imported", "GF116": "size-named", "GF117": "mask-not-known",
    "GF118": "cannot-run", "GF119": "weights-differ", "GF120": "totals-differ", "GF121": "saved-report",
    "GF122": "unfused-attention", "GF123": "substituted-figures", "GF124": "measured-busy",
    "GF125": "assumed-lifetimes", "GF126": "fused-conversions", "GF127": "value-mismatch",
    "GF128": "record-ignored", "GF129": "recorded-lifetimes", "GF130": "read-differently",
    "GF131": "declared-alone", "GF132": "guessed-numbers", "GF133": "offloaded-tensors",
    "GF134": "exported-otherwise",
}  # fmt: skip


def diagnostic(code: str, node: str, message: str) -> Diagnostic:
    """A diagnostic with the name that belongs to its code."""
    return Diagnostic(code, DIAGNOSTICS[code], node, message)
