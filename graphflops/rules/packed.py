"""The index of rules as text: a line with a module's name, and below it the operators that it prices, by namespace."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FEW = 4  # operators from which on a namespace gets a line of its own
_WIDTH = 124


def packed(homes: Mapping[str, str]) -> str:
    """The text for the module of each operator; `unpacked` reads it."""
    import textwrap  # an analysis does not write the index

    modules: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    shared: dict[tuple[str, str], int] = defaultdict(int)
    for key, home in homes.items():
        shared[home, key.rpartition(".")[0]] += 1
    for key, home in sorted(homes.items()):
        space, _, name = key.rpartition(".")
        if shared[home, space] < _FEW:
            space, _, name = key.partition(".")
        modules[home][space].append(name)
    lines: list[str] = []
    for home in sorted(modules):
        lines.append(home)
        for space, names in sorted(modules[home].items()):
            indent = f" {space}: "
            lines += textwrap.wrap(
                " ".join(names),
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def unpacked(text: str) -> dict[str, str]:
    """The module of each operator."""
    homes: dict[str, str] = {}
    home = ""
    for line in text.splitlines():
        if line[0] != " ":
            home = line
            continue
        space, _, names = line.partition(": ")
        prefix = f"{space[1:]}."
        for name in names.split(" "):
            homes[prefix + name] = home
    return homes
