"""Which module of `rules/` prices each operator, and the kind of each operator that the tables here do not list.

`index.txt` is written by `python -m tests.generated`; a test compares. A line names a module and a kind; below it stand
operators by namespace. What follows the first empty line are backward rules.
"""

from pathlib import Path
from typing import NamedTuple

INDEX = Path(__file__).with_name("index.txt")


class Home(NamedTuple):
    """Where an operator's rule is. kind: "" if the tables of `ops/` have it."""

    module: str
    kind: str = ""


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
