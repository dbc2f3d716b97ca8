"""Names the form of a mask as people do: `causal`, `causal, window 128`, `prefix 64`, `blocks of 32`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphflops.attention.conditions import ALWAYS, SameBlock
from graphflops.dims import same

if TYPE_CHECKING:
    from graphflops.attention.conditions import Case, Cases
    from graphflops.dims import Dim
    from graphflops.view import Call

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


def pattern_of_operator(call: Call) -> str:
    """The form of the mask that an operator applies by itself: causal, unless its windows say otherwise."""
    local = call.attribute("local_window_size", -1)
    left, right = call.attribute("left_window_size", -1), call.attribute("right_window_size", -1)
    if call.attribute("is_causal", 0) or max(left, right) < 0:
        right = 0
    if local > 0:
        left = local - 1
    if left < 0:
        return "causal" if right == 0 else f"window up to {right} after"
    return _window(left, right) if right >= 0 else f"window from {left} before"


def _of_case(case: Case, queries: Dim, keys: Dim) -> str:
    blocks = [term.constant for term in case if isinstance(term, SameBlock)]
    limits = {(term.row, term.column): term.constant for term in case if not isinstance(term, SameBlock)}
    right, left = limits.pop(_KEYS_UP_TO, None), limits.pop(_KEYS_FROM, None)
    first = limits.pop(_FIRST_KEYS, None)
    if limits or len(blocks) > 1:
        return ""
    parts = [_diagonals(left, right, queries, keys)] if (left, right) != (None, None) else []
    parts += [f"prefix {first + 1}"] if first is not None else []
    parts += [f"blocks of {blocks[0]}"] if blocks else []
    return "" if "" in parts else ", ".join(parts)


def _diagonals(left: Dim | None, right: Dim | None, queries: Dim, keys: Dim) -> str:
    """A query sees keys from `left` places before its own to `right` places after it."""
    if right is None:
        return ""
    is_causal = same(right, 0) or same(right, keys - queries)
    if left is None:
        return "causal" if is_causal else ""
    return f"causal, window {left + right + 1}" if is_causal else _window(left, right)


def _window(before: Dim, after: Dim) -> str:
    return f"causal, window {before + 1}" if after == 0 else f"window {before} before, {after} after"
