"""Masks that the user states for an input: `causal`, `window:1024`, `prefix:128`, `density:0.3`."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from graphflops.attention.conditions import TRUE, Affine, Truth, where_not_negative
from graphflops.base.record import Record
from graphflops.dims import Dim, at_least, floor_div
from graphflops.errors import ModelError, shown
from graphflops.graph import Graph
from graphflops.tensor import TensorType

KINDS = "causal, window:1024, prefix:128 or density:0.3"
_SPELLING = re.compile(
    r"(causal)|(window|prefix):(\d{1,15})|(density):(0?\.\d{1,12}|[01](?:\.\d{0,12})?)", re.ASCII
)


class Stated(Record, frozen=True):
    """What a mask lets through. The last query is at the last key's place."""

    # causal: keys up to the query's own place. window: the last `length` of those. prefix: those, and the first `length`
    # keys. density: the visible fraction of all pairs.
    kind: Literal["causal", "window", "prefix", "density"]
    length: int = 0  # for a density, in units of 1e-12

    def truth(self, queries: Dim, keys: Dim) -> Truth:
        """Where it may let through."""
        if self.kind == "density":
            return TRUE
        right = keys - queries
        causal = where_not_negative(Affine(1, -1, right))
        if self.kind == "window":
            return causal & where_not_negative(Affine(-1, 1, self.length - 1 - right))
        prefix = where_not_negative(Affine(0, -1, self.length - 1))
        return causal | prefix if self.kind == "prefix" else causal

    def doubled_hidden(self, queries: Dim, keys: Dim) -> Dim:
        """2 x the hidden pairs of a density; 0 for a mask whose structure is known."""
        hidden = _WHOLE - self.length if self.kind == "density" else 0
        return floor_div(2 * queries * keys * hidden, _WHOLE)

    def refuse(self, name: str, typed: TensorType | None, queries: Dim, keys: Dim) -> None:
        """Raise ModelError if the input is the same for all queries, and so cannot be such a mask.

        An input of fewer than two axes may be positions, from which the program makes a mask.
        """
        if self.kind == "density" or typed is None or typed.rank < 2:
            return
        if at_least(queries - 1, typed.shape[-2]):
            said = f"{queries} queries and {keys} keys cannot tell one query from another by it"
            raise ModelError(f"--mask {shown(name)}: it is {typed}, and {said}: only density is for it")


_WHOLE = 10**12


def parse(text: str) -> Stated:
    """The mask that a text states. Raises ModelError for other texts."""
    found = _SPELLING.fullmatch(text.strip())
    if found is None:
        raise ModelError(f"{shown(text)!r} is no mask: write {KINDS}")
    if found[4]:
        whole, _, part = found[5].partition(".")
        length = int(whole or 0) * _WHOLE + int((part + "0" * 12)[:12])
        if length > _WHOLE:
            raise ModelError(f"{shown(text)!r}: a density is from 0 to 1")
        return Stated("density", length)
    if found[3] is not None and int(found[3]) == 0 and found[2] == "window":
        raise ModelError(f"{shown(text)!r}: a window is at least 1")
    return Stated(found[1] or found[2], int(found[3] or 0))  # type: ignore[arg-type]


def parsed(masks: Mapping[str, str], graph: Graph) -> dict[str, Stated]:
    """The stated masks by input name. Raises ModelError for an unknown input name, or for a text that states no mask."""
    names = [entry.name for entry in graph.inputs if entry.role == "user"]
    found = {}
    for name, text in masks.items():
        if name not in names:
            from difflib import get_close_matches

            close = [f"did you mean {shown(other)}?" for other in get_close_matches(name, names, 1)]
            has = f"the program has {', '.join(map(shown, names[:20])) or 'none'}"
            raise ModelError(f"--mask {shown(name)}: no such input; {(*close, has)[0]}")
        found[name] = parse(text)
    return found


def refuse_unused(masks: Iterable[str], used: set[str]) -> None:
    """Raise ModelError for a stated mask of an input that masks nothing."""
    for name in masks:
        if name not in used:
            raise ModelError(f"--mask {shown(name)}: it masks no attention that was found")
