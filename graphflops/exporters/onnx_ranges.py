"""Ranges of sizes as torch's exporter states them: under its own names, of which the user's have taken the place."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, Union

from graphflops.dims import Dim, Expr, parse_dim, symbol
from graphflops.errors import DimError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

Range = tuple[Union[int, None], Union[int, None]]

_KEY = "pkg.torch.export.ExportedProgram.range_constraints"
_STATED = re.compile(r": VR\[(-?\w{1,20}), (-?\w{1,20})\]")
_OF_INPUTS = re.compile(r"s\d+")  # others, `u0`, are for data to tell
_MOST_STATED = 10_000


def ranges(model: Any, names: Collection[str], sizes: Iterable[Dim]) -> dict[str, Range]:
    """The inclusive range of each of the sizes by these names, as far as the file tells; of no size that none has.

    sizes: of the inputs' axes. A size `4*h` is that which the file calls `4*s18` if neither has its like. Of names that
    cannot be told apart each has some one of the ranges left over, so one that holds all of these.
    """
    stated = _stated(model)
    found = {name: stated[name] for name in names if name in stated}
    rest = [name for name in names if name not in stated]
    known = {key: sizes for key, sizes in stated.items() if _OF_INPUTS.fullmatch(key) and key not in names}
    if rest and known:
        ours, theirs = _patterns(sizes, rest), _patterns(map(_parsed, stated), known)
        for pattern, mine in ours.items():
            if len(mine) == 1 and len(other := theirs.get(pattern, set())) == 1:
                (name,), (stated_as,) = mine, other
                found.setdefault(name, stated[stated_as])
                known.pop(stated_as, None)
        rest = [name for name in rest if name not in found]
        if len(rest) <= len(known):
            found.update(dict.fromkeys(rest, _hull(known.values())))
    return found


def _stated(model: Any) -> dict[str, Range]:
    for entry in (*model.graph.metadata_props, *model.metadata_props):
        if entry.key == _KEY and isinstance(entry.value, str):
            return dict(islice(_pairs(entry.value), _MOST_STATED))
    return {}


def _pairs(text: str) -> Iterator[tuple[str, Range]]:
    """What a printed dict of ranges holds: `{s17: VR[2, 64], 4*s18: VR[16, int_oo]}`."""
    begins = 0
    for match in _STATED.finditer(text):
        low, high = map(_bound, match.groups())
        yield text[begins : match.start()].strip("{, "), (low or None, high)  # no size is below 0
        begins = match.end()


def _parsed(text: str) -> Dim:
    try:
        return parse_dim(text)
    except DimError:
        return 0


def _patterns(sizes: Iterable[Dim], names: Collection[str]) -> Mapping[Dim, set[str]]:
    """By what is made of a size: which of the names it is made of so, sizes themselves left out."""
    found: dict[Dim, set[str]] = {}
    for size in sizes:
        if isinstance(size, Expr) and len(size.symbols) == 1:
            (name,) = size.symbols
            if name in names and size is not symbol(name):
                found.setdefault(size.substitute({name: symbol("?")}), set()).add(name)
    return found


def _hull(known: Iterable[Range]) -> Range:
    """The range that holds all of these."""
    lows, highs = zip(*known, strict=True)
    return None if None in lows else min(lows), None if None in highs else max(highs)


def _bound(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
