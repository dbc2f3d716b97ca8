"""The form of what is visible, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.conditions import ALWAYS, Residue, SameBlock
from graphflops.attention.residues import DISTANCE
from graphflops.dims import same

if TYPE_CHECKING:
    from graphflops.attention.conditions import Case, Cases
    from graphflops.dims import Dim

_KEYS_UP_TO, _KEYS_FROM, _FIRST_KEYS = (1, -1), (-1, 1), (0, -1)  # directions of conditions


def pattern_of(visible: Cases, queries: Dim, keys: Dim) -> str:
    """The form of the visible pairs; "" where it has no name."""
    if visible == ALWAYS:
        return ""
    if len(visible) == 1:
        return _of_case(visible[0], queries, keys)
    names = [_of_case(case, queries, keys) for case in visible]
    if len(names) == 2 and "" not in names and any(name.startswith("prefix ") for name in names):
        return ", ".join(sorted(names))
    return ""


def _of_case(case: Case, queries: Dim, keys: Dim) -> str:
    blocks = [term.constant for term in case if isinstance(term, SameBlock)]
    steps = [term for term in case if isinstance(term, Residue)]
    bounds = [term for term in case if not isinstance(term, (SameBlock, Residue))]
    limits = {(term.row, term.column): term.constant for term in bounds}
    right, left = limits.pop(_KEYS_UP_TO, None), limits.pop(_KEYS_FROM, None)
    first = limits.pop(_FIRST_KEYS, None)
    if (
        limits
        or len(blocks) > 1
        or any((step.form, step.constant, step.kept) != (DISTANCE, 0, 1) for step in steps)
    ):
        return ""
    parts = [_diagonals(left, right, queries, keys)] if (left, right) != (None, None) else []
    parts += [f"blocks of {blocks[0]}"] if blocks else []
    parts += [f"every {step.modulus} places" for step in steps]
    if first is not None:
        return "" if parts else f"prefix {first + 1}"
    return "" if "" in parts else ", ".join(parts)


def _diagonals(left: Dim | None, right: Dim | None, queries: Dim, keys: Dim) -> str:
    """A query sees keys from `left` places before its own to `right` places after it."""
    if right is None:
        return ""
    is_causal = same(right, 0) or same(right, keys - queries)
    if left is None:
        return "causal" if is_causal else ""
    return f"causal, window {left + right + 1}" if is_causal else window(left, right)


def window(before: Dim, after: Dim) -> str:
    """The name of a window around a query's own place."""
    return f"causal, window {before + 1}" if after == 0 else f"window {before} before, {after} after"
