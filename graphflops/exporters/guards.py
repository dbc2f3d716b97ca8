"""Guards of an export: conditions on the sizes of inputs, which torch checks before each run of the program."""

from __future__ import annotations

import re
from collections.abc import Iterable

from graphflops.dims import Dim, Expr, parse_dim
from graphflops.errors import DimError
from graphflops.graph import Input

MOST_GUARDS = 500  # the others are not read: guards only refuse
_LONGEST = 500  # characters
_PATH = r"(?:\['\w+'\]|\[\d+\]|\.(?!size\b)\w+)+"
_SIZE = re.compile(rf"\bL({_PATH})(?:\.size\(\)\[(\d+)\])?")  # `L['past'][0].size()[2]`


def guards_of(codes: Iterable[str], inputs: Iterable[Input]) -> dict[str, Dim]:
    """Conditions, worth 0 or 1, by their text, in which input axes are called as everywhere, `x[1] == 12`.

    codes: in Python, as torch saves them. Those that say anything else than what sizes have to be are ignored.
    """
    names = {entry.name for entry in inputs if entry.role == "user"}
    guards: dict[str, Dim] = {}
    for code in [*codes][:MOST_GUARDS]:
        places = {_place(found) for found in _SIZE.finditer(code[:_LONGEST])}
        if len(code) > _LONGEST or not names.issuperset(place.partition("[")[0] for place in places):
            continue
        plain = code.replace("torch.sym_", "")
        try:
            condition = parse_dim(_SIZE.sub(lambda found: f"Symbol({_place(found)!r})", plain))
        except DimError:
            continue
        if isinstance(condition, Expr) and condition.symbols <= places:
            guards[_SIZE.sub(_place, plain)] = condition
    return guards


def _place(found: re.Match[str]) -> str:
    """The axis, or the number that is passed in, by the name that torch makes of the path of an argument."""
    name = "_".join(re.findall(r"\w+", found[1])).lower()
    return name if found[2] is None else f"{name}[{int(found[2])}]"
