"""Names that differ in their numbers only, as one: `layers.0-35.mlp`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NUMBERS = re.compile(r"\d+")
_INDEX = re.compile(r"(?<![^.])\d+(?![^.])")  # one part of a path that is a number


def runs_of(indices: Iterable[int]) -> list[str]:
    """Ascending indices, neighbours together: `0-11`, `13`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], index]
        else:
            runs.append([index])
    return ["-".join(map(str, run)) for run in runs]


def spans(indices: Iterable[int]) -> str:
    """Ascending indices: `0-11`, `0-3, 7`, `0, 2, … 26` where there are many."""
    texts = runs_of(indices)
    return ", ".join(texts) if len(texts) <= 3 else f"{texts[0]}, {texts[1]}, … {texts[-1]}"


def is_index(name: str) -> bool:
    """True for the name of a module in a list: its place there."""
    return name.isascii() and name.isdecimal() and len(name) < 10


def starred(path: str) -> str:
    """`blocks.*.fc2` for `blocks.3.fc2`: layers that differ in their place in a list are one."""
    return _INDEX.sub("*", path)


def unnumbered(name: str) -> str:
    """`layers.*.self_attn` for `layers.3.self_attn`: equal for names that differ only in their numbers."""
    return _NUMBERS.sub("*", name)


def numbered(names: Sequence[str]) -> str:
    """`layers.0-35.self_attn` for the names of 36 layers; the first of names that differ in more than their numbers."""
    if len({*map(unnumbered, names)}) > 1:
        return names[0]
    numbers = [_NUMBERS.findall(name) for name in names]
    ranges = iter([spans(sorted({int(n) for n in column})) for column in zip(*numbers, strict=True)])
    return _NUMBERS.sub(lambda _: next(ranges), names[0])
