"""Which module of `rules/` prices each operator, and the kind of each operator that the tables here do not list.

`index.txt` is written by `python -m graphflops.rules`; a test compares. A line names a module and a kind; below it stand
operators by namespace. What follows the first empty line are backward rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

INDEX = Path(__file__).with_name("index.txt")
_FEW = 4  # operators from which on a namespace gets a line of its own
_WIDTH = 124


class Home(NamedTuple):
    """Where an operator's rule is. kind: "" where the tables of `ops/` say it."""

    module: str
    kind: str = ""


def packed(homes: Mapping[str, Home]) -> str:
    """The text for the home of each operator; `unpacked` reads it."""
    import textwrap  # an analysis does not write the index

    sections: dict[Home, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    shared: dict[tuple[Home, str], int] = defaultdict(int)
    for key, home in homes.items():
        shared[home, key.rpartition(".")[0]] += 1
    for key, home in sorted(homes.items()):
        space, _, name = key.rpartition(".")
        if shared[home, space] < _FEW:
            space, _, name = key.partition(".")
        sections[home][space].append(name)
    lines: list[str] = []
    for home in sorted(sections):
        lines.append(" ".join(home).rstrip())
        for space, names in sorted(sections[home].items()):
            indent = f" {space}: "
            lines += textwrap.wrap(
                " ".join(names),
                _WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
    return "\n".join(lines) + "\n"


def unpacked(text: str) -> dict[str, Home]:
    """The home of each operator."""
    homes: dict[str, Home] = {}
    home = Home("")
    for line in text.splitlines():
        if line[0] != " ":
            home = Home(*line.split(" "))
            continue
        space, _, names = line.partition(": ")
        prefix = f"{space[1:]}."
        for name in names.split(" "):
            homes[prefix + name] = home
    return homes


STATED: dict[str, str] = {}  # kinds that rules outside of this package state
RULES, BACKWARDS = map(unpacked, INDEX.read_text(encoding="utf-8").split("\n\n"))
