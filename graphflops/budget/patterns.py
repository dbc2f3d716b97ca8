"""Patterns of module paths, operators and files, matched in time that no pattern can drive up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def matches_module(pattern: str, path: str) -> bool:
    """Whether a module path is meant: `*` stands for what is between two dots, `**` for any number of such parts."""
    return _meets(pattern.split("."), path.split("."), "**", _part)


def matches_file(pattern: str, path: str) -> bool:
    """Whether a path with `/` is meant: `*` stands for what is between two slashes, `**` for any number of such parts."""
    return _meets(pattern.split("/"), path.split("/"), "**", _part)


def matches_op(pattern: str, op: str) -> bool:
    """Whether an operator is meant: by name, `*` for anything; `aten.add` is all of its overloads and versions."""
    return _part(pattern, op) or op.startswith(f"{pattern}.")


def _part(pattern: str, text: str) -> bool:
    return _meets(pattern, text, "*", str.__eq__)


def _meets(
    pattern: Sequence[str], text: Sequence[str], any_number: str, equal: Callable[[str, str], bool]
) -> bool:
    """Whether a sequence matches; where it goes wrong, only the last `any_number` before needs to take one more."""
    at = start = kept = 0
    star = -1
    while start < len(text):
        if at < len(pattern) and pattern[at] == any_number:
            star, kept, at = at, start, at + 1
        elif at < len(pattern) and equal(pattern[at], text[start]):
            at, start = at + 1, start + 1
        elif star >= 0:
            kept += 1
            at, start = star + 1, kept
        else:
            return False
    return all(part == any_number for part in pattern[at:])
