"""The names under which people read sizes: a given label, the file's own name, or the input axis instead of `s70`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from graphflops.dims import Expr, symbol
from graphflops.errors import elided

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.report import Named, SymbolInfo
    from graphflops.tensor import TensorType

AXIS = re.compile(r"(.+)\[(\d{1,4})\]")
_MADE_UP = re.compile(r"[su]\d+")  # as torch names sizes
_MADE_UP_WORD = re.compile(r"\b[su]\d+\b")
_NAME = re.compile(r"Symbol\('([^'\\]*)'\)|[A-Za-z_]\w*")  # in the text of a formula or a type
_LONGEST = 24  # characters of an input's name in a short form


class _Same:
    """An object by its identity: a key for results that were computed from just this object."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


def size_names(symbols: Mapping[str, SymbolInfo], inputs: Sequence[Named]) -> Mapping[str, str]:
    """What each size is called where people read it.

    A label that the user gave counts first, then the file's own name. A name that the exporter made up (`s70`) gives way to
    the input axis of that size (`input_ids[1]`), unless each of its axes is an expression (`4*s70`).
    """
    return _size_names(_Same(symbols), _Same(inputs))


@lru_cache(maxsize=4)
def _size_names(symbols: _Same, inputs: _Same) -> Mapping[str, str]:
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name, info in symbols.it.items():
        called = info.label or name
        if not info.label and _MADE_UP.fullmatch(name):
            axes = [axis for axis in info.where if axis_size(name, axis, inputs.it) is None]
            short = min(map(_short, axes), key=len, default=name)
            called = min(axes, key=len) if axes and short in taken else short
        names[name] = called
        taken.add(called)
    return names


def axis_size(name: str, axis: str, inputs: Sequence[Named]) -> str | None:
    """The expression that an axis is of a size, `4*h`; None where the axis is the size itself."""
    found = AXIS.fullmatch(axis)
    typed = _types(_Same(inputs)).get(found[1]) if found else None
    if found is None or typed is None or int(found[2]) >= typed.rank:
        return None
    size = typed.shape[int(found[2])]
    return str(size) if isinstance(size, Expr) and size is not symbol(name) else None


@lru_cache(maxsize=4)
def _types(inputs: _Same) -> Mapping[str, TensorType]:
    """The types of inputs by name; of inputs of one name, the first one's."""
    return {entry.name: entry.type for entry in reversed(inputs.it)}


def called(text: str, names: Mapping[str, str]) -> str:
    """A formula, or the text of a type, with the names that people read."""
    return _NAME.sub(lambda found: names.get(found[1] or found[0], found[1] or found[0]), text)


def in_prose(text: str, names: Mapping[str, str]) -> str:
    """A sentence in which sizes that the exporter named (`s70`) have the names that people read."""
    return _MADE_UP_WORD.sub(lambda found: names.get(found[0], found[0]), text)


def _short(axis: str) -> str:
    name, bracket, place = axis.rpartition("[")
    return f"{elided(name, _LONGEST)}{bracket}{place}"


def span(low: int | None, high: int | None) -> str:
    """An inclusive range in words: "1..64", "at least 1", "at most 64", "" without limits."""
    if low is not None and high is not None:
        return f"{low}..{high}"
    return f"at least {low}" if low is not None else f"at most {high}" if high is not None else ""
