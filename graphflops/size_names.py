"""The names under which people read sizes: a given label, the file's own name, or the input axis instead of `s70`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from graphflops.dims import Expr, symbol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphflops.report import Named, SymbolInfo

AXIS = re.compile(r"(.+)\[(\d{1,4})\]")
_MADE_UP = re.compile(r"[su]\d+")  # as torch names sizes
_NAME = re.compile(r"Symbol\('([^'\\]*)'\)|[A-Za-z_]\w*")  # in the text of a formula or a type
_LONGEST = 24  # characters of an input's name in a short form


def size_names(symbols: Mapping[str, SymbolInfo], inputs: Sequence[Named]) -> dict[str, str]:
    """What each size is called where people read it.

    A label that the user gave counts first, then the file's own name. A name that the exporter made up (`s70`) gives way to
    the input axis of that size (`input_ids[1]`), unless each of its axes is an expression (`4*s70`).
    """
    names: dict[str, str] = {}
    for name, info in symbols.items():
        called = info.label or name
        if not info.label and _MADE_UP.fullmatch(name):
            axes = [axis for axis in info.where if axis_size(name, info, axis, inputs) is None]
            short = min(map(_short, axes), key=len, default=name)
            called = min(axes, key=len) if axes and short in names.values() else short
        names[name] = called
    return names


def axis_size(name: str, info: SymbolInfo, axis: str, inputs: Sequence[Named]) -> str | None:
    """The expression that an axis is of a size, `4*h`; None where the axis is the size itself."""
    found = AXIS.fullmatch(axis)
    typed = next((entry.type for entry in inputs if found and entry.name == found[1]), None)
    if found is None or typed is None or int(found[2]) >= typed.rank:
        return None
    size = typed.shape[int(found[2])]
    return str(size) if isinstance(size, Expr) and size is not symbol(name) else None


def called(text: str, names: Mapping[str, str]) -> str:
    """A formula, or the text of a type, with the names that people read."""
    return _NAME.sub(lambda found: names.get(found[1] or found[0], found[1] or found[0]), text)


def _short(axis: str) -> str:
    name, bracket, place = axis.rpartition("[")
    if len(name) > _LONGEST:
        half = (_LONGEST - 1) // 2
        name = f"{name[:half]}…{name[-half:]}"
    return f"{name}{bracket}{place}"
